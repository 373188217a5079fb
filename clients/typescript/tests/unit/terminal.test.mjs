/** Terminals over a real WebSocket of the package `ws`. */

import assert from "node:assert/strict";
import test from "node:test";
import { Client, ConfigurationError, ConnectionLost, Unauthorized } from "boxd-client";
import WebSocket, { WebSocketServer } from "ws";

async function opened(t, handler) {
  const server = new WebSocketServer({ port: 0, host: "127.0.0.1" });
  await new Promise((resolve) => server.on("listening", resolve));
  t.after(() => {
    for (const one of server.clients) one.terminate();
    server.close();
  });
  server.on("connection", handler);
  const url = `http://127.0.0.1:${server.address().port}`;
  const client = new Client({ url, key: "svc_test", WebSocket });
  return client.box("dev").terminal({ cols: 100, rows: 30 });
}

test("a terminal has output, input, a size and an exit code", async (t) => {
  const heard = [];
  const terminal = await opened(t, (socket, request) => {
    heard.push(request.url, request.headers.authorization);
    socket.on("message", (data, binary) => {
      heard.push(binary ? data.toString() : JSON.parse(data.toString()));
      if (heard.length < 4) return;
      socket.send(Buffer.from("bye"));
      socket.close(1000, "exit 4");
    });
  });
  terminal.resize(90, 20);
  terminal.write("exit 4\n");
  const chunks = [];
  for await (const chunk of terminal) chunks.push(Buffer.from(chunk).toString());
  assert.deepEqual([chunks, terminal.exitCode], [["bye"], 4]);
  assert.deepEqual(heard, [
    "/v1/boxes/dev/term?cols=100&rows=30",
    "Bearer svc_test",
    { resize: { cols: 90, rows: 20 } },
    "exit 4\n",
  ]);
  assert.throws(() => terminal.write("x"), ConnectionLost);
});

const ENDS = {
  "a revoked key": [(socket) => socket.close(1008, "key revoked"), Unauthorized],
  "the end of the box": [(socket) => socket.close(1001, "removed"), ConnectionLost],
  "a normal end without a code": [(socket) => socket.close(1000, ""), ConnectionLost],
  "a broken connection": [(socket) => socket.terminate(), ConnectionLost],
};
for (const [name, [end, kind]] of Object.entries(ENDS)) {
  test(`a terminal throws after ${name}`, async (t) => {
    const terminal = await opened(t, end);
    await assert.rejects(terminal.read(), kind);
    assert.equal(terminal.exitCode, null);
  });
}

test("close ends a read that waits", async (t) => {
  const terminal = await opened(t, () => undefined);
  const reading = terminal.read();
  terminal.close();
  await assert.rejects(reading, ConnectionLost);
});

test("a terminal that cannot be opened throws", async () => {
  const client = new Client({ url: "http://127.0.0.1:1", key: "k", WebSocket });
  await assert.rejects(client.box("dev").terminal(), ConnectionLost);
});

test("a runtime without a WebSocket needs one", async (t) => {
  if (globalThis.WebSocket !== undefined) t.skip("this runtime has a WebSocket");
  const client = new Client({ url: "http://127.0.0.1:1", key: "k" });
  await assert.rejects(client.box("dev").terminal(), ConfigurationError);
});
