// Counts requests in memory. A timer, a worker thread, a file watch and a child process go on beside it.
const {Worker, isMainThread, workerData} = require("worker_threads");
if (!isMainThread) {
  const shared = new Int32Array(workerData);
  setInterval(() => Atomics.add(shared, 0, 1), 5);
} else {
  const http = require("http"), fs = require("fs"), {spawn} = require("child_process");
  const shared = new SharedArrayBuffer(4), work = new Int32Array(shared);
  new Worker(__filename, {workerData: shared});
  const nonce = Math.random();
  let count = 0, ticks = 0, echoes = 0, changes = 0, garbage = [];
  const child = spawn("cat");
  child.stdout.on("data", () => { echoes += 1; child.stdin.write("."); });
  child.stdin.write(".");
  fs.writeFileSync("/root/watched", "");
  fs.watch("/root/watched", () => { changes += 1; });
  setInterval(() => {
    const seen = [echoes, changes];
    fs.writeFileSync("/root/watched", String(ticks));
    garbage.push(Buffer.alloc(1000), {ticks});
    if (garbage.length > 10000) garbage = [];
    if (seen[0] > node.echoes && seen[1] > node.changes) {
      ticks += 1;
      [node.echoes, node.changes] = seen;
    }
  }, 10);
  const node = {echoes: 0, changes: 0};
  const server = http.createServer((request, response) => {
    count += 1;
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({pid: process.pid, nonce, count, ticks, work: Atomics.load(work, 0)}));
  });
  server.keepAliveTimeout = 0;
  server.listen(Number(process.argv[2]), "127.0.0.1");
}
