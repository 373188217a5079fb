/** Files before a hostile server. */

import assert from "node:assert/strict";
import test from "node:test";
import { AnswerTooLarge, ConnectionLost, InvalidRequest, NotFound, ProtocolError } from "boxd-client";
import { answer, hangUp, json, serve } from "../hostile.mjs";

const FILE = { "Content-Type": "text/plain", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT" };
const part = (range, body, status = 206) => answer(status, body, { ...FILE, "Content-Range": range });

test("a part of a file is the requested one", async (t) => {
  const { client, requests } = await serve(t, part("bytes 4-8/20", "tests"));
  const bytes = await client().drive("api").read("a b/\u00e9.txt", { start: 4, end: 9 });
  assert.equal(Buffer.from(bytes).toString(), "tests");
  assert.equal(requests[0].target, "/v1/wrk/a%20b/%C3%A9.txt?ws=api");
  assert.equal(requests[0].headers["range"], "bytes=4-8");
});

const LIES = {
  "the whole file": answer(200, "all of it", FILE),
  "another part": part("bytes 0-4/20", "tests"),
  "a longer part": part("bytes 4-9/20", "testsx"),
  "a shorter part": part("bytes 4-6/20", "tes"),
  "no part": part("bytes */20", "tests"),
  "more bytes than the part": part("bytes 4-8/20", "testsx"),
};
for (const [name, lie] of Object.entries(LIES)) {
  test(`${name} instead of a part is refused`, async (t) => {
    const { client } = await serve(t, lie);
    await assert.rejects(client().drive().read("x", { start: 4, end: 9 }), ProtocolError);
  });
}

test("a cut file is an error, and nothing is read again", async (t) => {
  const cut = answer(200, "half", { ...FILE, "Content-Length": 8 });
  const { client, requests } = await serve(t, cut, part("bytes 4-8/20", "te"));
  await assert.rejects(client().drive().read("x"), ConnectionLost);
  await assert.rejects(client().drive().read("x", { start: 4, end: 9 }), ConnectionLost);
  assert.equal(requests.length, 2);
});

test("a file above the limit is refused", async (t) => {
  const { client } = await serve(t, answer(200, "12345", FILE));
  await assert.rejects(client().drive().read("x", { limit: 4 }), AnswerTooLarge);
});

test("text must be UTF-8", async (t) => {
  const { client } = await serve(t, answer(200, Buffer.from([0xff]), FILE));
  await assert.rejects(client().drive().readText("x"), TypeError);
});

test("a directory is no file, and a file is no directory", async (t) => {
  const directory = json({ path: "/x", entries: [] });
  const file = json({ entries: [] }, 200, { ...FILE, "Content-Type": "application/json" });
  const { client } = await serve(t, directory, file, file);
  await assert.rejects(client().box("dev").files.read("x"), InvalidRequest);
  await assert.rejects(client().box("dev").files.list("x"), NotFound);
  assert.equal((await client().box("dev").files.read("x")).length, 14);
});

test("pages are joined, and pages without an end are refused", async (t) => {
  const entry = { name: "a", is_dir: false, size: 1, mtime: "2026-01-02T03:04:05+00:00", etag: null };
  const page = (next) => json({ dir: true, path: "/x", entries: [entry], next });
  const { client, requests } = await serve(t, page("1"), page(null), page("2"));
  assert.equal((await client().drive().list("x/")).length, 2);
  assert.equal(requests[1].target, "/v1/wrk/x/?limit=1000&cursor=1");
  await assert.rejects(client().drive().list("x"), ProtocolError);
  await assert.rejects(client().drive().list("x", { limit: 0 }), AnswerTooLarge);
});

test("bytes are written again after a cut, streams are not", async (t) => {
  const { client, requests } = await serve(t, hangUp, answer(201, ""), hangUp);
  await client().box("dev").files.write("/etc/x", new Uint8Array(3), { mode: 0o600 });
  assert.equal(requests[1].target, "/v1/boxes/dev/files/etc/x?mode=0600");
  assert.equal(requests[1].headers["content-length"], "3");
  async function* content() {
    yield "x";
  }
  await assert.rejects(client().drive().write("x", content()), ConnectionLost);
  assert.equal(requests.length, 3);
});

test("blobs, buffers and streams are content", async (t) => {
  const written = (socket, request) => {
    const check = () => {
      if (!request.body().includes("end")) return;
      answer(204, "", { "Content-Type": "text/plain" })(socket);
    };
    socket.on("data", check);
    check();
  };
  const { client, requests } = await serve(t, written);
  const bytes = new TextEncoder().encode("the end");
  const drive = client().drive();
  await drive.write("x", new Blob([bytes]));
  await drive.write("x", bytes.buffer);
  await drive.write("x", new Blob([bytes]).stream());
  for (const request of requests) assert.match(request.body().toString(), /the end/);
});
