// A client by the TypeScript SDK, in either of its generations: does what the file named by PLAN
// says, and prints what came of it. Modules are looked for where it is run.
import { readFileSync, writeFileSync } from 'node:fs';

const plan = JSON.parse(readFileSync(process.env.PLAN, 'utf8'));

async function firstGeneration() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { ResourceUpdatedNotificationSchema } = await import('@modelcontextprotocol/sdk/types.js');
  const client = new Client({ name: 'test', version: '1' });
  client.onUpdated = told => client.setNotificationHandler(ResourceUpdatedNotificationSchema, told);
  client.call = (name, args, options) =>
    client.callTool({ name, arguments: args }, undefined, options);
  if (plan.door === 'socket') {
    globalThis.WebSocket = (await import('ws')).default;
    const { WebSocketClientTransport } = await import(
      '@modelcontextprotocol/sdk/client/websocket.js'
    );
    return [client, new WebSocketClientTransport(new URL(plan.url))];
  }
  const { StreamableHTTPClientTransport } = await import(
    '@modelcontextprotocol/sdk/client/streamableHttp.js'
  );
  return [client, new StreamableHTTPClientTransport(new URL(plan.url), headers())];
}

async function secondGeneration() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
  const mode = plan.era === 'legacy' ? 'legacy' : { pin: plan.era };
  const client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } });
  client.onUpdated = told =>
    client.setNotificationHandler('notifications/resources/updated', told);
  client.call = (name, args, options) => client.callTool({ name, arguments: args }, options);
  if (plan.door === 'stdio') {
    const [command, ...args] = plan.command;
    return [client, new StdioClientTransport({ command, args })];
  }
  return [client, new StreamableHTTPClientTransport(new URL(plan.url), headers())];
}

function headers() {
  return { requestInit: { headers: { Authorization: `Bearer ${plan.key}` } } };
}

async function cancelled(client) {
  const abort = new AbortController();
  const onprogress = () => abort.abort();
  try {
    await client.call('box_exec', plan.endless, { signal: abort.signal, onprogress });
  } catch {
    return abort.signal.aborted;
  }
  return false;
}

const [client, transport] = await (plan.sdk === 1 ? firstGeneration() : secondGeneration());
await client.connect(transport);
if (plan.only) {
  const [name, args] = plan.only;
  const answer = await client.call(name, args);
  process.stdout.write(JSON.stringify({ content: answer.structuredContent }));
  process.exit(0);
}
const tools = (await client.listTools()).tools.map(tool => tool.name);
const results = [];
for (const [name, args] of plan.calls) {
  const found = await client.call(name, args);
  results.push({ error: found.isError === true, content: found.structuredContent ?? null });
}
let updated;
const pushed = new Promise(resolve => (updated = resolve));
client.onUpdated(notification => updated(notification.params.uri));
if (plan.era === 'legacy') await client.subscribeResource({ uri: 'svc://fleet' });
else await client.listen({ resourceSubscriptions: ['svc://fleet'] });
await client.call('box_pin', { box: plan.box });
const push = await pushed;
const progress = [];
const onprogress = told => {
  progress.push(told.message);
  writeFileSync(plan.gate, '');
};
await client.call('box_exec', plan.talking, { onprogress });
const ended = await cancelled(client);
const read = await client.readResource({ uri: 'svc://fleet' });
const fleet = JSON.parse(read.contents[0].text);
await client.close();
process.stdout.write(
  JSON.stringify({ tools, results, push, progress, ended, boxes: fleet.boxes.length })
);
process.exit(0);
