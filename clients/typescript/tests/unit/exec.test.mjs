/** Commands before a hostile server. */

import assert from "node:assert/strict";
import { once } from "node:events";
import test from "node:test";
import {
  AnswerTooLarge,
  CommandFailed,
  ConnectionLost,
  ProtocolError,
  RequestTimeout,
} from "boxd-client";
import { answer, event, events, EXIT, hangUp, json, output, serve, silence } from "../hostile.mjs";

test("a command has its exit code and its output", async (t) => {
  const stream = [output("one\n"), output("two\n", "stderr"), event("exit", '{"code": 3}')];
  const { client, requests } = await serve(t, events(stream));
  const result = await client().box("ws/dev").exec("make", { env: { A: "1" }, stdin: "in" });
  assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "one\n", "two\n"]);
  assert.throws(() => result.check(), CommandFailed);
  const [request] = requests;
  assert.equal(`${request.method} ${request.target}`, "POST /v1/exec/ws%2Fdev");
  assert.equal(request.headers["authorization"], "Bearer svc_test");
  assert.equal(request.headers["accept-encoding"], "identity");
  const body = request.body().toString();
  assert.equal(body, '{"cmd":"make","env":{"A":"1"},"timeout_s":300}\nin');
});

test("characters that are cut between events are joined", async (t) => {
  const bytes = Buffer.from("a\u20acb");
  const stream = [output(bytes.subarray(0, 2)), output(bytes.subarray(2)), EXIT];
  const { client } = await serve(t, events(stream));
  const texts = [];
  for await (const one of client().box("dev").stream("x")) texts.push(one.text ?? one.code);
  assert.deepEqual(texts, ["a", "\u20acb", 0]);
});

test("every split of the stream gives the same events", async (t) => {
  const whole = Buffer.from(`: comment\r\n\r\n${output("x")}event: exit\r\ndata: {"code": 7}\r\n\r\n`);
  for (let place = 1; place < whole.length; place += 3) {
    const chunks = [whole.subarray(0, place), whole.subarray(place)];
    const { client } = await serve(t, events(chunks));
    assert.equal((await client().box("dev").exec("x")).exitCode, 7);
  }
});

const BROKEN = {
  "a cut before the exit": [events([output("x")], "cut"), ConnectionLost],
  "an end without an exit": [events([output("x")]), ConnectionLost],
  "no answer": [hangUp, ConnectionLost],
  "the failure of the service": [events([event("failed", '{"error": "it stops"}')]), ConnectionLost],
  "output after the exit": [events([EXIT, output("x")]), ProtocolError],
  "a second exit": [events([EXIT, EXIT]), ProtocolError],
  "an exit without a code": [events([event("exit", "{}")]), ProtocolError],
  "a code that is text": [events([event("exit", '{"code": "0"}')]), ProtocolError],
  "a code that is true": [events([event("exit", '{"code": true}')]), ProtocolError],
  "a code of no command": [events([event("exit", '{"code": 256}')]), ProtocolError],
  "data that is not JSON": [events([event("exit", "{code: 0}")]), ProtocolError],
  "output that is not base64": [events([event("stdout", "a b="), EXIT]), ProtocolError],
  "base64 with padding inside": [events([event("stdout", "YQ==YQ=="), EXIT]), ProtocolError],
  "base64 of a wrong length": [events([event("stdout", "abc"), EXIT]), ProtocolError],
  "a line that is not UTF-8": [events([Buffer.from([0x64, 0xff, 0x0a]), EXIT]), ProtocolError],
  "no event stream": [json({ exit_code: 0 }), ProtocolError],
  "a redirect": [answer(302, "", { Location: "http://127.0.0.1:1/" }), ProtocolError],
  "compressed events": [
    answer(200, EXIT, { "Content-Type": "text/event-stream", "Content-Encoding": "gzip" }),
    ProtocolError,
  ],
};
for (const [name, [broken, kind]] of Object.entries(BROKEN)) {
  test(`exec throws for ${name}, and sends nothing again`, async (t) => {
    const { client, requests } = await serve(t, broken);
    await assert.rejects(client().box("dev").exec("x"), kind);
    assert.equal(requests.length, 1);
  });
}

test("a line without an end is refused", async (t) => {
  const { client } = await serve(t, (socket) => {
    events(["data: "], "stay")(socket);
    const piece = Buffer.alloc(64 * 1024, "x");
    const more = () => {
      if (socket.destroyed) return;
      socket.write(`${piece.length.toString(16)}\r\n`);
      socket.write(piece);
      if (socket.write("\r\n")) setImmediate(more);
      else socket.once("drain", more);
    };
    more();
  });
  await assert.rejects(client().box("dev").exec("x"), /a line of the event stream exceeds/);
});

test("output above the limit is refused, and the connection ends", async (t) => {
  let closed;
  const { client } = await serve(t, (socket) => {
    closed = once(socket, "close");
    events([output("x".repeat(100))], "stay")(socket);
  });
  await assert.rejects(client().box("dev").exec("x", { limit: 99 }), AnswerTooLarge);
  await closed;
});

test("a break ends the connection", async (t) => {
  let closed;
  const { client } = await serve(t, (socket) => {
    closed = once(socket, "close");
    events([output("x")], "stay")(socket);
  });
  const stream = client().box("dev").stream("x");
  for await (const one of stream) {
    assert.equal(one.text, "x");
    break;
  }
  assert.equal(stream.exitCode, null);
  await closed;
});

test("close ends a stream that waits", async (t) => {
  const { client } = await serve(t, events([output("x")], "stay"));
  const stream = client().box("dev").stream("x");
  await stream.next();
  const waiting = stream.next();
  await stream.close();
  assert.deepEqual(await waiting, { done: true, value: undefined });
});

test("a signal ends a command with its reason", async (t) => {
  const { client } = await serve(t, events([output("x")], "stay"));
  const controller = new AbortController();
  const stream = client().box("dev").stream("x", { signal: controller.signal });
  await stream.next();
  const reason = new Error("enough");
  controller.abort(reason);
  await assert.rejects(stream.next(), reason);
});

test("a signal that fired before sends nothing", async (t) => {
  const { client, requests } = await serve(t, silence);
  const signal = AbortSignal.abort(new Error("before"));
  await assert.rejects(client().box("dev").exec("x", { signal }), /before/);
  await assert.rejects(client().whoami({ signal }), /before/);
  assert.equal(requests.length, 0);
});

test("a stream that does not begin in time fails", async (t) => {
  const { client } = await serve(t, silence);
  await assert.rejects(client({ timeoutSeconds: 0.1 }).box("dev").exec("x"), RequestTimeout);
});

test("a stream that never ends after the exit is complete", async (t) => {
  const { client } = await serve(t, events([output("x"), EXIT], "stay"));
  assert.equal((await client().box("dev").exec("x")).stdout, "x");
});

test("input from a generator is sent, and its error is thrown", async (t) => {
  const answerAtEnd = (socket, request) => {
    const check = () => {
      if (request.body().includes("0\r\n\r\n")) events([EXIT])(socket);
    };
    socket.on("data", check);
    check();
  };
  const { client, requests } = await serve(t, answerAtEnd);
  async function* input() {
    yield "one";
    yield new Uint8Array([0x32]);
  }
  await client().box("dev").exec("x", { stdin: input() });
  const body = requests[0].body().toString();
  assert.match(body, /"cmd":"x"[^]*one[^]*2/);
  async function* failing() {
    yield "one";
    throw new RangeError("my input failed");
  }
  await assert.rejects(client().box("dev").exec("x", { stdin: failing() }), /my input failed/);
});

test("input without an end ends with its command", async (t) => {
  const { client } = await serve(t, (socket) => {
    events([EXIT])(socket);
    socket.removeAllListeners("data").resume();
  });
  let closed = false;
  async function* endless() {
    try {
      for (;;) yield new Uint8Array(1 << 16);
    } finally {
      closed = true;
    }
  }
  await client().box("dev").exec("x", { stdin: endless() });
  assert.equal(closed, true);
});

test("a large event is complete", async (t) => {
  const text = "x".repeat(3_000_000);
  const { client } = await serve(t, events([output(text), EXIT]));
  assert.equal((await client().box("dev").exec("x")).stdout, text);
});

test("the events of a watch are checked", async (t) => {
  const change = event("change", '{"path": "/b", "from": "/a", "kind": "moved", "is_dir": false}');
  const over = event("overflow", "{}");
  const end = event("end", "{}");
  const { client } = await serve(
    t,
    events([change, over, end]),
    events([change], "cut"),
    events([change]),
    events([event("failed", '{"error": "the box stopped"}')]),
    events([end, change]),
    events([event("change", '{"path": 1, "kind": "moved"}')]),
  );
  const read = async () => {
    const seen = [];
    for await (const one of client().box("dev").watch("/")) seen.push([one.kind, one.source]);
    return seen;
  };
  assert.deepEqual(await read(), [
    ["moved", "/a"],
    ["overflow", null],
  ]);
  for (const kind of [ConnectionLost, ConnectionLost, /the box stopped/, ProtocolError, ProtocolError]) {
    await assert.rejects(read(), kind);
  }
});

test("the events of several boxes are checked", async (t) => {
  const line = (name, box, more) => event(name, JSON.stringify({ box, ...more }));
  const data = Buffer.from("x").toString("base64");
  const begin = [line("stdout", "a", { data }), line("exit", "a", { code: 1 })];
  const end = [line("failed", "b", { status: 404, error: "no box" }), event("done", "{}")];
  const { client } = await serve(
    t,
    events([...begin, ...end]),
    events([...begin, line("stdout", "a", { data })]),
    events(begin),
  );
  const found = [];
  for await (const one of client().batch(["a", "b"], "x")) found.push(`${one.box} ${one.type}`);
  assert.deepEqual(found, ["a output", "a exit", "b error"]);
  const read = async () => {
    for await (const one of client().batch(["a", "b"], "x")) assert.ok(one);
  };
  await assert.rejects(read(), ProtocolError);
  await assert.rejects(read(), ConnectionLost);
});
