/** Background commands before a hostile server. */

import assert from "node:assert/strict";
import test from "node:test";
import { ConnectionLost, NotFound, ProtocolError } from "boxd-client";
import { event, events, EXIT, hangUp, json, output, serve } from "../hostile.mjs";

const INFO = {
  id: "00c0ffee00c0ffee",
  box: "0f3a41c2d5e6978811223344556677ff",
  cmd: "make",
  state: "running",
  exit_code: null,
  signal: null,
  pid: 7,
  started: "2026-01-02T03:04:05+00:00",
  ended: null,
  output_bytes: 10,
  dropped_bytes: 0,
  stdin_open: false,
  keep_awake: true,
  timeout_s: null,
};

test("output continues after a cut where it was", async (t) => {
  const { client, requests } = await serve(
    t,
    events([output("one", "stdout", "3"), "id: 6\nevent: std"], "cut"),
    json({ error: "busy" }, 503, { "Retry-After": "0" }),
    events([output("two", "stdout", "6"), event("dropped", '{"bytes": 4}', "10"), EXIT]),
  );
  const seen = [];
  for await (const one of client().box("dev").command("c1").output()) {
    seen.push(one.text ?? one.count ?? one.code);
  }
  assert.deepEqual(seen, ["one", "two", 4, 0]);
  const ids = requests.map((request) => request.headers["last-event-id"]);
  assert.deepEqual(ids, [undefined, "3", "3"]);
  assert.equal(requests[0].target, "/v1/boxes/dev/commands/c1/output?offset=0");
});

test("output gives up after some failures without progress", async (t) => {
  const { client, requests } = await serve(t, events([output("x", "stdout", "1")], "cut"), hangUp);
  await assert.rejects(client().box("dev").command("c1").output().collect(), ConnectionLost);
  assert.equal(requests.length, 3);
});

test("output does not continue after a refusal or a lie", async (t) => {
  const lie = events([event("stdout", "?", "1")]);
  const { client, requests } = await serve(t, json({ error: "no command" }, 404), lie);
  const command = client().box("dev").command("c1");
  await assert.rejects(command.output().collect(), NotFound);
  await assert.rejects(command.output().collect(), ProtocolError);
  assert.equal(requests.length, 2);
});

test("a start is repeated with the same key", async (t) => {
  const { client, requests } = await serve(t, hangUp, json(INFO, 201));
  const command = await client().box("dev").start("make", { stdin: true, keepAwake: false });
  assert.equal(command.id, INFO.id);
  const keys = requests.map((request) => request.headers["idempotency-key"]);
  assert.match(keys[0], /^[0-9a-f]{32}$/);
  assert.equal(keys[0], keys[1]);
  const body = JSON.parse(requests[1].body().toString());
  assert.deepEqual(body, { cmd: "make", stdin: true, keep_awake: false });
});

test("input and signals are never repeated", async (t) => {
  const { client, requests } = await serve(t, hangUp);
  const command = client().box("dev").command("c1");
  await assert.rejects(command.write("x"), ConnectionLost);
  await assert.rejects(command.signal("INT"), ConnectionLost);
  assert.equal(requests.length, 2);
});

test("waiting returns the code after the output so far", async (t) => {
  const { client, requests } = await serve(t, json(INFO), events([event("exit", '{"code": 9}')]));
  assert.equal(await client().box("dev").command("c1").wait(), 9);
  assert.match(requests[1].target, /offset=10$/);
});

test("a state of a wrong type is refused", async (t) => {
  const { client } = await serve(t, json({ ...INFO, output_bytes: "10" }), json({ id: "x" }));
  const command = client().box("dev").command("c1");
  await assert.rejects(command.info(), /Command.output_bytes has a value of the wrong type/);
  await assert.rejects(command.info(), /the answer has no Command/);
});
