/** The objects of an account before a real service, and the models against its document. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import test from "node:test";
import { pathToFileURL } from "node:url";
import { Client, NotFound, RequestTimeout } from "boxd-client";

const client = new Client();

test("the account is known", async () => {
  const me = await client.whoami();
  assert.match(me.fingerprint, /^SHA256:/);
  assert.ok((await client.stat()).some((one) => one.what === "boxes"));
  assert.ok((await client.keys.list()).length > 0);
});

test("workspaces, profiles and secrets are created, listed and removed", async () => {
  assert.equal((await client.workspaces.create("tsws")).name, "tsws");
  const options = { lifetimeSeconds: 300, durable: true };
  const profile = await client.profiles.set("tsprofile", "debian", options);
  assert.deepEqual([profile.image, profile.lifetime_s, profile.durable], ["debian", 300, true]);
  assert.deepEqual((await client.profiles.get("tsprofile")).name, "tsprofile");
  assert.equal((await client.profiles.list()).length, 1);
  assert.equal((await client.workspaces.setProfile("tsws", "tsprofile")).profile, "tsprofile");
  assert.equal((await client.workspaces.setProfile("tsws", null)).profile, null);
  await client.profiles.remove("tsprofile");
  await assert.rejects(client.profiles.get("tsprofile"), NotFound);
  const secret = await client.secrets.set("TS_TOKEN", "value", { workspace: "tsws" });
  assert.equal(secret.name, "TS_TOKEN");
  assert.equal((await client.secrets.list({ workspace: "tsws" })).length, 1);
  await client.secrets.remove("TS_TOKEN", { workspace: "tsws" });
  await client.drive("tsws").write("x", "y");
  await client.workspaces.remove("tsws", { force: true });
  assert.ok((await client.workspaces.list()).every((one) => one.name !== "tsws"));
});

test("questions are asked, waited for and answered", async () => {
  const question = await client.asks.ask("Which one?", ["a", "b"]);
  assert.equal(question.state, "open");
  assert.equal((await client.asks.list())[0].question, "Which one?");
  await assert.rejects(client.asks.wait(question.id, { timeoutSeconds: 0 }), RequestTimeout);
  const waiting = client.asks.wait(question.id);
  await client.asks.answer(question.id, "b");
  assert.equal((await waiting).answer, "b");
});

test("the agent is set, shown and removed", async () => {
  const agent = await client.agent.set("my-agent", "MY_TOKEN", "secret", { format: "jsonl" });
  assert.deepEqual([agent.cmd, agent.format], ["my-agent", "jsonl"]);
  assert.equal((await client.agent.get()).env, "MY_TOKEN");
  await client.agent.remove();
  await assert.rejects(client.agent.get(), NotFound);
});

const package_ = createRequire(import.meta.url).resolve("boxd-client/package.json");
const { documented } = await import(pathToFileURL(join(dirname(package_), "dist/models.js")).href);
const document = await (await fetch(`${client.url}/v1/openapi.json`)).json();
const schemas = document.components.schemas;
/** Members that only some answers of a model have. */
const OTHERS = { Box: ["notes"], Entry: ["mode"] };

for (const model of documented) {
  test(`the model ${model.kind} is that of the document`, () => {
    const schema = schemas[model.kind];
    for (const [name, reader] of Object.entries(model.shape)) {
      const member = reader.member ?? name;
      if (OTHERS[model.kind]?.includes(member)) continue;
      assert.ok(member in schema.properties, `${model.kind} has no ${member}`);
      const kind = kindOf(schema.properties[member]);
      const exact = reader.kind.replace("|null", "");
      assert.equal(exact, kind.replace("|null", ""), `${model.kind}.${member}`);
      if (kind.endsWith("|null")) assert.ok(reader.kind.endsWith("|null"), `${member} may be null`);
      if (!schema.required.includes(member)) assert.ok(reader.missing, `${member} may be missing`);
    }
  });
}

function kindOf(schema) {
  if ("$ref" in schema) return schema.$ref.split("/").at(-1);
  if ("anyOf" in schema) return schema.anyOf.map(kindOf).join("|");
  if (schema.type === "array") return `[${kindOf(schema.items)}]`;
  return schema.type;
}
