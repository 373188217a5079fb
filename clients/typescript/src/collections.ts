/** The objects of an account: boxes, workspaces, profiles, secrets, keys, shares, questions. */

import { Box } from "./box.js";
import { pause } from "./deadline.js";
import { RequestTimeout } from "./errors.js";
import {
  agent as agentReader,
  ask as askReader,
  askResult,
  boxInfo,
  key as keyReader,
  profile as profileReader,
  secretName,
  share as shareReader,
  snapshot as snapshotReader,
  workspace as workspaceReader,
  type Agent,
  type Ask,
  type AskResult,
  type BoxInfo,
  type Key,
  type Profile,
  type SecretName,
  type Share,
  type Snapshot,
  type Workspace,
} from "./models.js";
import { callOf, jsonRequest, segment, valueOf, type CallOptions, type Params } from "./protocol.js";
import { list as listOf, type Reader } from "./reading.js";
import type { WebSocketClass } from "./terminal.js";
import type { Transport } from "./transport.js";

/** Seconds that one request waits for the answer to a question. */
const POLL_S = 25;
const SPEC = /[+!:^]/;

/** Options of a list: only the objects of a workspace. */
export type ListOptions = CallOptions & { workspace?: string };

/** What collections share. */
class Collection {
  constructor(protected readonly transport: Transport) {}

  protected async fetched<T>(
    path: string,
    reader: Reader<T>,
    options: CallOptions,
    params: Params = {},
  ): Promise<T> {
    const request = { ...callOf(options), method: "GET", path, params, retry: "safe" } as const;
    return valueOf(await this.transport.send(request), reader);
  }

  protected async stored<T>(
    path: string,
    body: object,
    reader: Reader<T>,
    options: CallOptions,
    params: Params = {},
  ): Promise<T> {
    const more = { ...callOf(options), params, retry: "safe" } as const;
    return valueOf(await this.transport.send(jsonRequest("PUT", path, body, more)), reader);
  }

  protected async created<T>(
    path: string,
    body: object,
    reader: Reader<T>,
    options: CallOptions,
    params: Params = {},
  ): Promise<T> {
    const more = { ...callOf(options), params, retry: "keyed" } as const;
    return valueOf(await this.transport.send(jsonRequest("POST", path, body, more)), reader);
  }

  protected async removed(path: string, options: CallOptions, params: Params = {}): Promise<void> {
    const request = { ...callOf(options), method: "DELETE", path, params, retry: "safe" } as const;
    await this.transport.send(request);
  }
}

/** Options of a new box. `deadline` and `lifetime` are durations such as `2h`. */
export interface CreateOptions extends CallOptions {
  image?: string;
  flavor?: string;
  deadline?: string;
  lifetime?: string;
  durable?: boolean;
  /** Replace an existing box of this name. */
  fresh?: boolean;
}

/** The boxes of the account. */
export class Boxes extends Collection {
  constructor(
    transport: Transport,
    private readonly sockets?: WebSocketClass,
  ) {
    super(transport);
  }

  /**
   * Create a box, or resume the one of this name, and return it.
   *
   * `name` may have a workspace (`ws/name`), or be a whole spec (`dev:debian:small^2h`).
   */
  async create(name: string, options: CreateOptions = {}): Promise<Box> {
    const { image, flavor, deadline, lifetime, durable, fresh } = options;
    const parts = { image, flavor, deadline, lifetime, fresh, durable };
    let body: object = { ...parts, spec: name };
    let ws: string | undefined;
    if (!SPEC.test(name)) {
      const slash = name.indexOf("/");
      if (slash >= 0) ws = name.slice(0, slash);
      body = { ...parts, name: name.slice(slash + 1) };
    }
    const info = await this.created("/v1/boxes", body, boxInfo, options, { ws });
    return new Box(this.transport, info.ref, this.sockets);
  }

  /** Return all boxes that the key reaches, or those of a workspace. */
  list(options: ListOptions = {}): Promise<BoxInfo[]> {
    return this.fetched("/v1/boxes", listOf(boxInfo), options, { ws: options.workspace });
  }

  /** Return one box with its current use. */
  get(ref: string, options: CallOptions = {}): Promise<BoxInfo> {
    return new Box(this.transport, ref).info(options);
  }

  /** Return all snapshots, also those of removed boxes. */
  snapshots(options: ListOptions = {}): Promise<Snapshot[]> {
    const params = { ws: options.workspace };
    return this.fetched("/v1/snapshots", listOf(snapshotReader), options, params);
  }
}

/** The workspaces of the account. */
export class Workspaces extends Collection {
  /** Return all workspaces. */
  list(options: CallOptions = {}): Promise<Workspace[]> {
    return this.fetched("/v1/workspaces", listOf(workspaceReader), options);
  }

  /** Create a workspace. */
  create(name: string, options: CallOptions = {}): Promise<Workspace> {
    return this.created("/v1/workspaces", { name }, workspaceReader, options);
  }

  /** Remove a workspace; with `force`, also its boxes and its drive. */
  remove(name: string, options: CallOptions & { force?: boolean } = {}): Promise<void> {
    return this.removed(`/v1/workspaces/${segment(name)}`, options, { force: options.force });
  }

  /** Set the default profile of new boxes; null removes it. */
  setProfile(name: string, profile: string | null, options: CallOptions = {}): Promise<Workspace> {
    const path = `/v1/workspaces/${segment(name)}/profile`;
    return this.stored(path, { profile }, workspaceReader, options);
  }
}

/** Options of a profile. Times are in seconds. */
export interface ProfileOptions extends CallOptions {
  flavor?: string;
  lifetimeSeconds?: number;
  deadlineSeconds?: number;
  egress?: string;
  durable?: boolean;
}

/** The profiles of the account: defaults of new boxes. */
export class Profiles extends Collection {
  /** Return all profiles. */
  list(options: CallOptions = {}): Promise<Profile[]> {
    return this.fetched("/v1/profiles", listOf(profileReader), options);
  }

  /** Return one profile. */
  get(name: string, options: CallOptions = {}): Promise<Profile> {
    return this.fetched(`/v1/profiles/${segment(name)}`, profileReader, options);
  }

  /** Create or replace a profile. */
  set(name: string, image: string, options: ProfileOptions = {}): Promise<Profile> {
    const body = { image, ...profileBody(options) };
    return this.stored(`/v1/profiles/${segment(name)}`, body, profileReader, options);
  }

  /** Create or replace a profile from the disk of a box. */
  build(name: string, box: string, options: ProfileOptions = {}): Promise<Profile> {
    const body = { from: box, ...profileBody(options) };
    return this.created(`/v1/profiles/${segment(name)}/build`, body, profileReader, options);
  }

  /** Remove a profile. */
  remove(name: string, options: CallOptions = {}): Promise<void> {
    return this.removed(`/v1/profiles/${segment(name)}`, options);
  }
}

function profileBody(options: ProfileOptions): object {
  const { flavor, lifetimeSeconds, deadlineSeconds, egress, durable } = options;
  return { flavor, lifetime_s: lifetimeSeconds, deadline_s: deadlineSeconds, egress, durable };
}

/** Options of a secret. */
export type SecretOptions = ListOptions & { tier?: "account" | "workspace" };

/** The secrets of the account and of its workspaces. Values are never returned. */
export class Secrets extends Collection {
  /** Return the names of all secrets. */
  list(options: ListOptions = {}): Promise<SecretName[]> {
    return this.fetched("/v1/secrets", listOf(secretName), options, { ws: options.workspace });
  }

  /** Set a secret. */
  set(name: string, value: string, options: SecretOptions = {}): Promise<SecretName> {
    const body = { value, tier: options.tier };
    const params = { ws: options.workspace };
    return this.stored(`/v1/secrets/${segment(name)}`, body, secretName, options, params);
  }

  /** Remove a secret. */
  remove(name: string, options: SecretOptions = {}): Promise<void> {
    const params = { ws: options.workspace, tier: options.tier };
    return this.removed(`/v1/secrets/${segment(name)}`, options, params);
  }
}

/** The API keys of the account. Only SSH creates them. */
export class Keys extends Collection {
  /** Return all keys, without their texts. */
  list(options: CallOptions = {}): Promise<Key[]> {
    return this.fetched("/v1/keys", listOf(keyReader), options);
  }

  /** Revoke a key. */
  remove(name: string, options: CallOptions = {}): Promise<void> {
    return this.removed(`/v1/keys/${segment(name)}`, options);
  }
}

/** The shares of all boxes. */
export class Shares extends Collection {
  /** Return all shares. */
  list(options: CallOptions = {}): Promise<Share[]> {
    return this.fetched("/v1/shares", listOf(shareReader), options);
  }

  /** Revoke a share; its sessions end. */
  remove(id: string, options: CallOptions = {}): Promise<void> {
    return this.removed(`/v1/shares/${segment(id, "share")}`, options);
  }
}

/** The program that `delegate` runs. */
export class Agents extends Collection {
  /** Return the program. */
  get(options: CallOptions = {}): Promise<Agent> {
    return this.fetched("/v1/agent", agentReader, options);
  }

  /** Set the program, the name of the variable of its token, and the token. */
  set(
    cmd: string,
    env: string,
    token: string,
    options: CallOptions & { format?: "text" | "jsonl" } = {},
  ): Promise<Agent> {
    const body = { cmd, env, token, format: options.format };
    return this.stored("/v1/agent", body, agentReader, options);
  }

  /** Remove the program and its token. */
  remove(options: CallOptions = {}): Promise<void> {
    return this.removed("/v1/agent", options);
  }
}

/** Questions to the owner of the account. */
export class Asks extends Collection {
  /** Return the open questions. */
  list(options: CallOptions = {}): Promise<Ask[]> {
    return this.fetched("/v1/asks", listOf(askReader), options);
  }

  /** Ask a question and return its state without waiting. `box`: the box that asks. */
  ask(
    question: string,
    choices: readonly string[] = [],
    options: CallOptions & { box?: string } = {},
  ): Promise<AskResult> {
    const answers = choices.length > 0 ? choices : undefined;
    const body = { question, options: answers, box: options.box };
    return this.created("/v1/asks", body, askResult, options);
  }

  /** Return the state of a question, and its answer if there is one. */
  get(id: string, options: CallOptions = {}): Promise<AskResult> {
    return this.fetched(`/v1/asks/${segment(id, "question")}`, askResult, options);
  }

  /** Wait for the end of a question. Throws `RequestTimeout` after the time (default: 1 hour). */
  async wait(
    id: string,
    options: { timeoutSeconds?: number; signal?: AbortSignal } = {},
  ): Promise<AskResult> {
    const { timeoutSeconds = 3600, signal } = options;
    const end = performance.now() + timeoutSeconds * 1000;
    const path = `/v1/asks/${segment(id, "question")}`;
    for (;;) {
      const start = performance.now();
      const rest = (end - start) / 1000;
      if (rest <= 0) {
        throw new RequestTimeout(`nobody answered question ${id} within ${timeoutSeconds} s`);
      }
      const params = { wait_s: Math.max(1, Math.min(POLL_S, Math.trunc(rest))) };
      const result = await this.fetched(path, askResult, { signal }, params);
      if (result.state !== "open") return result;
      if (performance.now() - start < 1000) await pause(1, signal);
    }
  }

  /** Answer a question; the program that asked continues. */
  async answer(id: string, answer: string, options: CallOptions = {}): Promise<AskResult> {
    const path = `/v1/asks/${segment(id, "question")}/answer`;
    const request = jsonRequest("POST", path, { answer }, callOf(options));
    return valueOf(await this.transport.send(request), askResult);
  }
}
