/** The client before a real service, at BOXD_URL with BOXD_API_KEY. */

import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import test from "node:test";
import {
  Client,
  CommandFailed,
  Conflict,
  InvalidRequest,
  NotFound,
  RetryPolicy,
  Unauthorized,
} from "boxd-client";
import WebSocket from "ws";

const client = new Client({ WebSocket });
const box = client.box("ts");

test("a command has output, input, variables and a code", async () => {
  const options = { env: { NAME: "h\u00e9" }, stdin: new Uint8Array([0x61, 0xff, 0x0a]) };
  const result = await box.exec("cat; echo $NAME >&2; exit 3", options);
  assert.deepEqual([...result.stdoutBytes], [0x61, 0xff, 0x0a]);
  assert.deepEqual([result.exitCode, result.stderr], [3, "h\u00e9\n"]);
  await assert.rejects(box.exec("echo no >&2; exit 4", { check: true }), (error) => {
    assert.ok(error instanceof CommandFailed);
    assert.equal(error.message, "the command ended with code 4: no");
    return error.result.exitCode === 4;
  });
});

test("input from a generator reaches a command", async () => {
  async function* input() {
    for (let count = 0; count < 100; count++) yield "x".repeat(10_000);
  }
  assert.equal((await box.exec("wc -c", { stdin: input() })).stdout.trim(), "1000000");
});

test("a command that reads no input ends, and its input is closed", async () => {
  let closed = false;
  async function* endless() {
    try {
      for (;;) yield new Uint8Array(1 << 16);
    } finally {
      closed = true;
    }
  }
  assert.equal((await box.exec("exit 6", { stdin: endless() })).exitCode, 6);
  assert.equal(closed, true);
});

test("output arrives while the command runs, and a break ends the command", async () => {
  const stream = box.stream("echo first; exec sleep 1000");
  for await (const event of stream) {
    assert.deepEqual([event.type, event.stream, event.text], ["output", "stdout", "first\n"]);
    break;
  }
  await box.exec("while pgrep -f 'sleep [1]000'; do sleep 0.05; done", { check: true });
});

test("a timeout of the service is the code 124", async () => {
  assert.equal((await box.exec("sleep 1000", { timeoutSeconds: 1 })).exitCode, 124);
});

test("a batch runs in several boxes", async () => {
  const seen = {};
  for await (const event of client.batch(["ts", "ts-two"], "echo in $HOSTNAME; exit 2")) {
    seen[event.box] = (seen[event.box] ?? "") + (event.text ?? ` ${event.type} ${event.code}`);
  }
  assert.deepEqual(Object.values(seen).sort(), ["in ts\n exit 2", "in ts-two\n exit 2"]);
  await client.box("ts-two").remove({ force: true });
});

test("background commands outlive their connection", async () => {
  const command = await box.start("read line; echo got $line; exec sleep 1000", { stdin: true });
  await command.write("a line\n");
  const again = client.box("ts").command(command.id);
  for await (const event of again.output()) {
    assert.equal(event.text, "got a line\n");
    break;
  }
  assert.equal((await again.info()).state, "running");
  assert.ok((await box.commands()).some((one) => one.id === command.id));
  await again.signal("KILL");
  assert.equal(await again.wait(), 137);
  const stored = await again.read({ offset: 4 });
  assert.equal(Buffer.from(stored.stdout).toString(), "a line\n");
  assert.deepEqual([stored.state, stored.exit_code, stored.next_offset], ["exited", 137, 11]);
  const all = await again.output().collect();
  assert.deepEqual([all.exitCode, all.stdout], [137, "got a line\n"]);
  await again.remove();
  await assert.rejects(again.info(), NotFound);
});

test("output of a background command is complete over a line that breaks often", async (t) => {
  const { hostname, port } = new URL(client.url);
  const sockets = [];
  let cuts = 0;
  const line = createServer((near) => {
    const far = connect(port, hostname);
    sockets.push(near, far);
    for (const one of [near, far]) one.on("error", () => undefined);
    near.pipe(far);
    let rest = 200_000;
    far.on("data", (data) => {
      near.write(data.subarray(0, rest));
      rest -= data.length;
      if (rest > 0) return;
      cuts += 1;
      near.end();
      far.destroy();
    });
    far.on("close", () => near.end());
    near.on("close", () => far.destroy());
  });
  await new Promise((resolve) => line.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const one of sockets) one.destroy();
    line.close();
  });
  const url = `http://127.0.0.1:${line.address().port}`;
  const broken = new Client({ url, retries: new RetryPolicy({ first: 0.01 }) });
  const command = await broken.box("ts").start("seq 1 200000");
  const { stdout, exitCode } = await broken.box("ts").command(command.id).output().collect();
  const numbers = Array.from({ length: 200_000 }, (_, place) => `${place + 1}\n`);
  assert.equal(exitCode, 0);
  assert.equal(stdout, numbers.join(""));
  assert.ok(cuts > 3, `${cuts} cuts`);
});

test("a terminal is a login shell", async () => {
  const terminal = await box.terminal({ cols: 91, rows: 24 });
  terminal.write("stty size; exit 5\n");
  let text = "";
  for await (const chunk of terminal) text += Buffer.from(chunk).toString();
  assert.match(text, /24 91/);
  assert.equal(terminal.exitCode, 5);
  await assert.rejects(client.box("none").terminal(), NotFound);
});

test("files of a box and of the drive are read, written, listed and removed", async () => {
  for (const [files, root] of [
    [box.files, "/srv/"],
    [client.drive(), ""],
  ]) {
    const name = `${root}dir/h\u00e9 %.json`;
    await files.write(name, '{"entries": []}');
    assert.equal(await files.readText(name), '{"entries": []}');
    const bytes = await files.read(name, { start: 2, end: 9 });
    assert.equal(Buffer.from(bytes).toString(), "entries");
    assert.equal((await files.stat(name)).size, 15);
    const [entry] = await files.list(`${root}dir`);
    assert.deepEqual([entry.name, entry.is_dir, entry.size], ["h\u00e9 %.json", false, 15]);
    assert.ok(entry.mtime instanceof Date);
    await assert.rejects(files.list(name), (error) => error.status >= 400);
    const refused = (error) => [InvalidRequest, NotFound, Conflict].includes(error.constructor);
    await assert.rejects(files.read(`${root}dir`), refused);
    await files.makeDirectory(`${root}dir/inner`);
    assert.equal(await files.exists(`${root}dir/inner`), true);
    await files.remove(`${root}dir`);
    await assert.rejects(files.read(name), NotFound);
    assert.equal(await files.exists(name), false);
  }
  const drive = client.drive();
  await drive.write("one", new Blob(["content"]));
  await drive.copy("one", "two");
  await drive.move("two", "one", { replace: true });
  await box.files.write("/root/tool", "#!/bin/sh\necho run", { mode: 0o755 });
  assert.equal((await box.exec("/root/tool && cat /wrk/one")).stdout, "run\ncontent");
});

test("large content streams both ways", async () => {
  const size = 8 << 20;
  async function* content() {
    for (let place = 0; place < size; place += 1 << 16) yield new Uint8Array(1 << 16).fill(7);
  }
  const drive = client.drive();
  await drive.write("large", content());
  let count = 0;
  for await (const chunk of drive.readStream("large", { start: 1 })) count += chunk.length;
  assert.equal(count, size - 1);
});

test("changes of files are watched", async () => {
  await box.exec("mkdir -p /srv/watched");
  const changes = box.watch("/srv/watched");
  const first = changes.next();
  const writing = box.start("while sleep 0.1; do date >> /srv/watched/x; done");
  const { value } = await first;
  assert.equal(value.path, "/srv/watched/x");
  await changes.close();
  await (await writing).remove();
});

test("ports are listed and reached", async () => {
  await box.files.write("/srv/web/index.html", "a page");
  const server = await box.start("cd /srv/web && exec python3 -m http.server 8000");
  await box.exec("until (: </dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done");
  assert.ok((await box.ports()).some((one) => one.port === 8000));
  assert.equal(await box.previewUrl(8000), null);
  const page = await box.request(8000, "/?q=1");
  assert.deepEqual([page.status, Buffer.from(page.body).toString()], [200, "a page"]);
  assert.equal((await box.request(8000, "/none")).status, 404);
  await server.remove();
  await assert.rejects(box.previewUrl(1), NotFound);
});

test("boxes are created, pinned, suspended, forked and removed", async () => {
  const one = await client.boxes.create("ts-life", { image: "debian", deadline: "2h" });
  assert.equal((await client.boxes.get("ts-life")).state, "running");
  assert.ok((await client.boxes.list()).some((info) => info.ref === "ts-life"));
  assert.equal((await one.pin({ seconds: 60, why: "a test" })).pin_why, "a test");
  await assert.rejects(one.remove(), Conflict);
  assert.equal((await one.unpin()).pinned_until, null);
  assert.equal((await one.keep()).durable, true);
  assert.equal((await one.keep({ off: true })).durable, false);
  assert.ok((await one.stat()).length > 0);
  const share = await one.share({ seconds: 60 });
  assert.ok(share.token.length > 8);
  assert.deepEqual((await one.shares()).map((two) => two.id), [share.id]);
  await client.shares.remove(share.id);
  assert.deepEqual(await client.shares.list(), []);
  await one.remove();
  assert.equal(await one.exists(), false);
  assert.throws(() => client.box("x+1h"), InvalidRequest);
});

test("boxes are suspended, forked and restored with their memory", async () => {
  const one = await client.boxes.create("ts-base", { image: "debian" });
  const counter = await one.start("count=0; while sleep 0.1; do count=$((count + 1)); done");
  await one.files.write("/root/state", "first");
  assert.equal(await one.suspend(), "suspended");
  assert.equal(await one.resume(), "running");
  const saved = await one.snapshot("before");
  assert.deepEqual([saved.name, saved.box], ["before", "ts-base"]);
  await one.files.write("/root/state", "second");
  const text = await one.withFork(async (fork) => {
    assert.equal((await fork.command(counter.id).info()).state, "running");
    return (await fork.exec("cat /root/state")).stdout;
  });
  assert.equal(text, "second");
  const two = await one.forkSnapshot("before", "ts-copy");
  assert.equal((await two.exec("cat /root/state")).stdout, "first");
  await one.restore("before");
  assert.equal(await one.files.readText("/root/state"), "first");
  assert.ok((await one.snapshots()).some((item) => item.name === "before"));
  assert.ok((await client.boxes.snapshots()).some((item) => item.box === "ts-base"));
  await one.removeSnapshot("before");
  assert.ok((await one.snapshots()).every((item) => item.name !== "before"));
  await two.remove({ force: true });
  await one.remove({ force: true });
});

test("temporary boxes are removed", async () => {
  const ref = await client.temporary(async (one) => one.ref, { image: "debian" });
  assert.equal(await client.box(ref).exists(), false);
  let failed = "";
  const use = async (one) => {
    failed = one.ref;
    throw new Error("my error");
  };
  await assert.rejects(client.temporary(use), /my error/);
  assert.equal(await client.box(failed).exists(), false);
});

test("an unknown key is refused", async () => {
  const stranger = new Client({ key: "svc_unknown", WebSocket });
  await assert.rejects(stranger.whoami(), Unauthorized);
  await assert.rejects(stranger.box("ts").exec("true"), Unauthorized);
  await assert.rejects(stranger.box("ts").terminal(), Unauthorized);
});
