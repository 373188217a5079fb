/** Requests, answers, retries and settings before a hostile server. */

import assert from "node:assert/strict";
import test from "node:test";
import { inspect } from "node:util";
import {
  AnswerTooLarge,
  BoxError,
  Client,
  ConfigurationError,
  Conflict,
  ConnectionLost,
  Forbidden,
  InvalidRequest,
  NotFound,
  PreconditionFailed,
  ProtocolError,
  QuotaExceeded,
  RequestTimeout,
  RetryPolicy,
  ServiceFailed,
  StorageFull,
  TooLarge,
  Unauthorized,
  Unavailable,
} from "boxd-client";
import { answer, hangUp, json, serve, silence } from "../hostile.mjs";

const ME = { fingerprint: "SHA256:x", tier: "free", boxes: 1, workspaces: [], api_keys: 1, scope: null };

const CLASSES = {
  400: InvalidRequest,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  412: PreconditionFailed,
  413: TooLarge,
  422: InvalidRequest,
  429: QuotaExceeded,
  500: ServiceFailed,
  502: ServiceFailed,
  503: Unavailable,
  507: StorageFull,
};
for (const [status, kind] of Object.entries(CLASSES)) {
  test(`the status ${status} has its own error`, async (t) => {
    const text = { error: "bad\u001b[2J\nline" };
    const { client } = await serve(t, json(text, status, { "X-Request-Id": "r1", "Retry-After": "99" }));
    await assert.rejects(client().whoami(), (error) => {
      assert.ok(error instanceof kind && error instanceof BoxError);
      assert.equal(error.constructor, kind);
      assert.deepEqual(
        [error.name, error.message, error.status, error.requestId],
        [kind.name, "bad?[2J\nline", Number(status), "r1"],
      );
      if ([429, 503].includes(error.status)) assert.equal(error.retryAfter, 99);
      return true;
    });
  });
}

test("a read is repeated after a cut, and as Retry-After says", async (t) => {
  const busy = json({ error: "busy" }, 429, { "Retry-After": "0" });
  const { client, requests } = await serve(t, hangUp, busy, json(ME));
  assert.equal((await client().whoami()).boxes, 1);
  assert.equal(requests.length, 3);
});

test("repetitions are bounded", async (t) => {
  const { client, requests } = await serve(t, hangUp);
  await assert.rejects(client().whoami(), ConnectionLost);
  assert.equal(requests.length, 3);
  await assert.rejects(client({ retries: new RetryPolicy({ attempts: 1 }) }).whoami(), ConnectionLost);
  assert.equal(requests.length, 4);
});

test("a longer Retry-After than allowed is an error at once", async (t) => {
  const { client, requests } = await serve(t, json({ error: "busy" }, 503, { "Retry-After": "3600" }));
  await assert.rejects(client().whoami(), Unavailable);
  assert.equal(requests.length, 1);
});

test("a signal ends the wait before a repetition", async (t) => {
  const controller = new AbortController();
  const { client } = await serve(t, (socket) => {
    json({ error: "busy" }, 503, { "Retry-After": "9" })(socket);
    socket.on("close", () => controller.abort(new Error("enough")));
  });
  const patient = client({ retries: new RetryPolicy() });
  await assert.rejects(patient.whoami({ signal: controller.signal }), /enough/);
});

test("a removal that was done before its answer was lost is a success", async (t) => {
  const { client } = await serve(t, hangUp, json({ error: "no box" }, 404));
  await client().box("dev").remove();
  await assert.rejects(client().box("dev").remove(), NotFound);
});

test("a first creation that still runs is asked for again", async (t) => {
  const { client, requests } = await serve(t, hangUp, json({ error: "it runs" }, 409), json({}));
  await assert.rejects(client().workspaces.create("api"), /the answer has no Workspace/);
  assert.equal(new Set(requests.map((one) => one.headers["idempotency-key"])).size, 1);
  assert.equal(requests.length, 3);
});

const LIES = {
  "a shorter body than announced": [answer(200, "{}", { "Content-Length": 500 }), ConnectionLost],
  "no length": [
    (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}'),
    ProtocolError,
  ],
  "another type": [answer(200, "<html>", { "Content-Type": "text/html" }), ProtocolError],
  "no JSON": [answer(200, "{"), ProtocolError],
  "no UTF-8": [answer(200, Buffer.from([0x22, 0xff, 0x22])), ProtocolError],
  "a list instead of an object": [json([ME]), ProtocolError],
  "a member of a wrong type": [json({ ...ME, boxes: "1" }), ProtocolError],
  "a fraction instead of an integer": [json({ ...ME, boxes: 1.5 }), ProtocolError],
  "an integer that cannot be exact": [json({ ...ME, boxes: 2 ** 60 }), ProtocolError],
  "a missing member": [json({ ...ME, workspaces: undefined }), ProtocolError],
  "a list with a wrong value": [json({ ...ME, workspaces: [1] }), ProtocolError],
  "a redirect": [answer(307, "", { Location: "http://127.0.0.1:1/" }), ProtocolError],
  "an unexpected status": [answer(206, JSON.stringify(ME)), ProtocolError],
  "a head that is no HTTP": [(socket) => socket.end("SSH-2.0-OpenSSH\r\n"), ConnectionLost],
};
for (const [name, [lie, kind]] of Object.entries(LIES)) {
  test(`an answer with ${name} is refused`, async (t) => {
    const { client } = await serve(t, lie);
    await assert.rejects(client().whoami(), kind);
  });
}

test("names of prototypes are no members", async (t) => {
  const { client } = await serve(t, answer(200, '{"__proto__": {"fingerprint": "x"}}'));
  await assert.rejects(client().whoami(), /the answer has no Identity.fingerprint/);
});

test("times have a zone", async (t) => {
  const key = { name: "k", scope: null, created: "2026-01-02T03:04:05", expires: null, last_used: null };
  const right = { ...key, created: "2026-01-02T03:04:05.678901+00:00" };
  const { client } = await serve(t, json([key]), json([right]));
  await assert.rejects(client().keys.list(), /Key\[0\].created|is not a time/);
  const [one] = await client().keys.list();
  assert.equal(one.created.toISOString(), "2026-01-02T03:04:05.678Z");
});

test("silence ends with a timeout", async (t) => {
  const once = new RetryPolicy({ attempts: 1 });
  const { client, requests } = await serve(t, silence);
  await assert.rejects(client({ timeoutSeconds: 0.1, retries: once }).whoami(), RequestTimeout);
  await assert.rejects(client({ retries: once }).whoami({ timeoutSeconds: 0.1 }), RequestTimeout);
  assert.equal(requests.length, 2);
});

test("an answer that trickles ends with a timeout", async (t) => {
  const { client } = await serve(t, (socket) => {
    socket.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n");
    const timer = setInterval(() => socket.write(" "), 10);
    socket.on("close", () => clearInterval(timer));
  });
  const once = new RetryPolicy({ attempts: 1 });
  await assert.rejects(client({ timeoutSeconds: 0.3, retries: once }).whoami(), RequestTimeout);
});

test("the body of an error is bounded", async (t) => {
  const { client } = await serve(t, (socket) => {
    socket.write("HTTP/1.1 500 No\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n");
    const more = () => {
      if (!socket.destroyed && socket.write(Buffer.alloc(4096, "x"))) setImmediate(more);
      else if (!socket.destroyed) socket.once("drain", more);
    };
    more();
  });
  await assert.rejects(client().whoami(), ServiceFailed);
});

test("an answer of a port is bounded and has any status", async (t) => {
  const page = answer(418, "tea", { "Content-Type": "text/plain", "X-App": "1" });
  const { client, requests } = await serve(t, page);
  const box = client().box("dev");
  const found = await box.request(8000, "/a b/?q=1&q=2", { method: "POST", content: "x" });
  assert.deepEqual([found.status, found.headers.get("x-app")], [418, "1"]);
  assert.equal(requests[0].target, "/v1/boxes/dev/proxy/8000/a%20b/?q=1&q=2");
});

test("names cannot leave their place in a path", async (t) => {
  const { client, requests } = await serve(t, json({ error: "no" }, 404));
  const one = client();
  for (const name of ["", ".", ".."]) {
    assert.throws(() => one.box(name), InvalidRequest);
    assert.throws(() => one.secrets.remove(name), InvalidRequest);
  }
  assert.throws(() => one.box("dev:debian"), InvalidRequest);
  for (const path of ["../x", "a/./b", "a\0"]) {
    await assert.rejects(one.drive().read(path), InvalidRequest);
  }
  await assert.rejects(one.box("a/../b?c#d").info(), NotFound);
  assert.deepEqual(requests.map((request) => request.target), ["/v1/boxes/a%2F..%2Fb%3Fc%23d"]);
});

test("the key is not shown with the objects of the client", () => {
  const client = new Client({ url: "http://x", key: "svc_hidden" });
  for (const one of [client, client.boxes, client.box("dev"), client.drive()]) {
    assert.doesNotMatch(inspect(one, { depth: 9 }), /svc_hidden/);
    assert.doesNotMatch(JSON.stringify(one), /svc_hidden/);
  }
});

test("settings are checked", () => {
  delete process.env.BOXD_URL;
  delete process.env.BOXD_API_KEY;
  const wrong = [
    {},
    { url: "http://x" },
    { url: "no URL", key: "k" },
    { url: "ftp://x", key: "k" },
    { url: "http://u:p@x", key: "k" },
    { url: "http://x?y", key: "k" },
    { url: "http://x", key: "a b" },
  ];
  for (const options of wrong) assert.throws(() => new Client(options), ConfigurationError);
  process.env.BOXD_URL = "https://x.example/base/";
  process.env.BOXD_API_KEY = "svc_x\n";
  assert.equal(new Client().url, "https://x.example/base");
  delete process.env.BOXD_URL;
  delete process.env.BOXD_API_KEY;
});
