/**
 * Values that the service returns. Their members have the names of the HTTP API, and times are
 * `Date`. Unknown members are ignored, so a newer service works with an older client.
 */

import { counts, flag, integer, list, model, named, number, or, orNull, text, time } from "./reading.js";

/** The host resources that a box uses. Sizes are in bytes, `cpu_s` in seconds. */
export interface Usage {
  at: Date;
  cpu_s: number;
  cpu_share: number | null;
  memory_bytes: number;
  disk_bytes: number;
  pids: number;
  net_rx_bytes: number;
  net_tx_bytes: number;
  oom_kills: number;
  saved_memory_bytes: number;
}

export const usage = model<Usage>("Usage", {
  at: time,
  cpu_s: number,
  cpu_share: orNull(number),
  memory_bytes: integer,
  disk_bytes: integer,
  pids: integer,
  net_rx_bytes: integer,
  net_tx_bytes: integer,
  oom_kills: integer,
  saved_memory_bytes: integer,
});

/** The automatic removal of an unused box: its time, and `deadline` or `unused`. */
export interface Removal {
  at: Date;
  why: string;
}

export const removal = model<Removal>("Removal", { at: time, why: text });

/** The next automatic action on a box: `removed` or `suspended`, and its time. */
export interface NextAct {
  act: string;
  at: Date;
}

export const nextAct = model<NextAct>("NextAct", { act: text, at: time });

/** One box. `ref` addresses it: `name`, or `workspace/name`. */
export interface BoxInfo {
  id: string;
  name: string;
  ref: string;
  state: string;
  image: string;
  /** Null: the default workspace. */
  workspace: string | null;
  flavor: string;
  profile: string | null;
  /** The reason of the state; often empty. */
  detail: string;
  age_s: number;
  cpus: number;
  mem_mb: number;
  disk_mb: number;
  created: Date;
  deadline: Date | null;
  next: NextAct | null;
  removal: Removal | null;
  /** The service removes the box only at its deadline. */
  durable: boolean;
  /** The box is suspended and its memory is saved. */
  memory: boolean;
  pinned_until: Date | null;
  pin_why: string;
  egress: string;
  /** The number of attachments that keep the box awake. */
  attached: number;
  /** The number of attachments by kind. */
  why: Record<string, number>;
  usage: Usage | null;
  /** Remarks for people on the creation of the box. */
  notes: string[];
}

export const boxInfo = model<BoxInfo>("Box", {
  id: text,
  name: text,
  ref: text,
  state: text,
  image: text,
  workspace: orNull(text),
  flavor: text,
  profile: orNull(text),
  detail: or(text, ""),
  age_s: number,
  cpus: number,
  mem_mb: integer,
  disk_mb: or(integer, 0),
  created: time,
  deadline: orNull(time),
  next: orNull(nextAct),
  removal: orNull(removal),
  durable: flag,
  memory: flag,
  pinned_until: orNull(time),
  pin_why: or(text, ""),
  egress: or(text, ""),
  attached: or(integer, 0),
  why: or(counts, {}),
  usage: orNull(usage),
  notes: or(list(text), []),
});

/** A snapshot of a box. */
export interface Snapshot {
  name: string;
  box: string;
  workspace: string | null;
  /** The snapshot has the memory of the box. */
  memory: boolean;
  image: string;
  flavor: string;
  size_bytes: number;
  created: Date;
  box_removed: boolean;
}

export const snapshot = model<Snapshot>("Snapshot", {
  name: named("snapshot", text),
  box: text,
  workspace: orNull(text),
  memory: flag,
  image: text,
  flavor: text,
  size_bytes: integer,
  created: time,
  box_removed: flag,
});

/** The use and the limit of one resource. */
export interface Stat {
  what: string;
  unit: string;
  used: number | null;
  limit: number | null;
  of: string;
}

export const stat = model<Stat>("Stat", {
  what: text,
  unit: text,
  used: orNull(number),
  limit: orNull(number),
  of: or(text, ""),
});

/** A TCP port on which a program in the box listens. `url`: where a browser opens it. */
export interface Port {
  port: number;
  address: string;
  url: string | null;
}

export const port = model<Port>("Port", { port: integer, address: text, url: orNull(text) });

/** A share of a box. */
export interface Share {
  id: string;
  box: string;
  box_id: string;
  created: Date;
  expires: Date | null;
  last_used: Date | null;
}

export const share = model<Share>("Share", {
  id: text,
  box: text,
  box_id: text,
  created: time,
  expires: orNull(time),
  last_used: orNull(time),
});

/** A new share of a box. No later answer has `token` again. */
export interface NewShare extends Share {
  token: string;
}

export const newShare = model<NewShare>("NewShare", { ...share.shape, token: text });

/** A workspace. `name` is null for the default workspace. */
export interface Workspace {
  name: string | null;
  default: boolean;
  boxes: number;
  bytes: number;
  files: number;
  profile: string | null;
  created: Date | null;
}

export const workspace = model<Workspace>("Workspace", {
  name: orNull(text),
  default: flag,
  boxes: integer,
  bytes: integer,
  files: integer,
  profile: orNull(text),
  created: orNull(time),
});

/** Defaults of new boxes. `lifetime_s` and `deadline_s` are in seconds. */
export interface Profile {
  name: string;
  image: string;
  flavor: string | null;
  lifetime_s: number | null;
  deadline_s: number | null;
  egress: string | null;
  durable: boolean;
  built_from: string | null;
}

export const profile = model<Profile>("Profile", {
  name: text,
  image: text,
  flavor: orNull(text),
  lifetime_s: orNull(number),
  deadline_s: orNull(number),
  egress: orNull(text),
  durable: flag,
  built_from: orNull(text),
});

/** The name of a secret. The service never returns values. */
export interface SecretName {
  name: string;
  tier: string;
  ws: string | null;
  updated: Date;
}

export const secretName = model<SecretName>("Secret", {
  name: text,
  tier: text,
  ws: orNull(text),
  updated: time,
});

/** An API key without its text. `scope`: the only workspace that it reaches, or null. */
export interface Key {
  name: string;
  scope: string | null;
  created: Date;
  expires: Date | null;
  last_used: Date | null;
}

export const key = model<Key>("Key", {
  name: text,
  scope: orNull(text),
  created: time,
  expires: orNull(time),
  last_used: orNull(time),
});

/** The program that `delegate` runs. */
export interface Agent {
  cmd: string;
  env: string;
  format: string;
  updated: Date;
}

export const agent = model<Agent>("Agent", { cmd: text, env: text, format: text, updated: time });

/** An open question to the owner. */
export interface Ask {
  id: string;
  state: string;
  question: string;
  options: string[];
  box: string | null;
  workspace: string | null;
  created: Date;
}

export const ask = model<Ask>("Ask", {
  id: text,
  state: text,
  question: text,
  options: list(text),
  box: orNull(text),
  workspace: orNull(text),
  created: time,
});

/** The state of a question: `open`, `answered` or another end. `answer` is null without one. */
export interface AskResult {
  id: string;
  state: string;
  answer: string | null;
}

export const askResult = model<AskResult>("AskResult", {
  id: text,
  state: text,
  answer: orNull(text),
});

/** The account of the API key. `scope`: the only workspace that the key reaches, or null. */
export interface Identity {
  fingerprint: string;
  tier: string;
  boxes: number;
  workspaces: string[];
  api_keys: number | null;
  scope: string | null;
}

export const identity = model<Identity>("Identity", {
  fingerprint: text,
  tier: text,
  boxes: integer,
  workspaces: list(text),
  api_keys: orNull(integer),
  scope: orNull(text),
});

/** An entry of a directory. `encoded_name` is set if the name is not UTF-8. */
export interface Entry {
  name: string;
  is_dir: boolean;
  size: number;
  mtime: Date | null;
  /** The permissions; only in a box. */
  mode: string | null;
  /** The entity tag; only on a drive. */
  etag: string | null;
  encoded_name: string | null;
}

export const entry = model<Entry>("Entry", {
  name: text,
  is_dir: flag,
  size: or(integer, 0),
  mtime: orNull(time),
  mode: orNull(text),
  etag: orNull(text),
  encoded_name: orNull(text),
});

/** One page of a directory. `next` is the cursor of the next page; null: the last page. */
export interface Listing {
  entries: Entry[];
  next: string | null;
}

export const listing = model<Listing>("Directory", { entries: list(entry), next: orNull(text) });

/** A background command. `state` is `running` or `exited`. */
export interface CommandInfo {
  id: string;
  box: string;
  cmd: string;
  state: string;
  exit_code: number | null;
  /** The signal that ended the command, without SIG. */
  signal: string | null;
  pid: number;
  started: Date;
  ended: Date | null;
  output_bytes: number;
  dropped_bytes: number;
  stdin_open: boolean;
  keep_awake: boolean;
  timeout_s: number | null;
}

export const commandInfo = model<CommandInfo>("Command", {
  id: text,
  box: text,
  cmd: text,
  state: text,
  exit_code: orNull(integer),
  signal: orNull(text),
  pid: integer,
  started: time,
  ended: orNull(time),
  output_bytes: integer,
  dropped_bytes: integer,
  stdin_open: flag,
  keep_awake: flag,
  timeout_s: orNull(integer),
});

/** A part of the output of a background command, as it arrives. */
export interface EncodedOutput {
  stdout: string;
  stderr: string;
  next_offset: number;
  dropped_bytes: number;
  state: string;
  exit_code: number | null;
}

export const encodedOutput = model<EncodedOutput>("CommandOutput", {
  stdout: text,
  stderr: text,
  next_offset: integer,
  dropped_bytes: integer,
  state: text,
  exit_code: orNull(integer),
});

/** A part of the output of a background command. The next part begins at `next_offset`. */
export interface StoredOutput extends Omit<EncodedOutput, "stdout" | "stderr"> {
  stdout: Uint8Array;
  stderr: Uint8Array;
}

/**
 * A change below a watched directory. `source` is the earlier path of a moved file.
 *
 * The kind `overflow` has no path: changes were too many, and some are not reported.
 */
export interface Change {
  kind: string;
  path: string;
  is_dir: boolean;
  source: string | null;
}

export const change = model<Change>("Change", {
  kind: text,
  path: or(text, ""),
  is_dir: or(flag, false),
  source: named("from", orNull(text)),
});

/** The state of a box after a change. */
export interface BoxState {
  state: string;
}

export const boxState = model<BoxState>("BoxState", { state: text });

/** The models that the OpenAPI document describes, for the comparison of the two. */
export const documented = [
  usage, removal, nextAct, boxInfo, snapshot, stat, port, share, newShare, workspace, profile,
  secretName, key, agent, ask, askResult, identity, entry, listing, commandInfo, encodedOutput,
  boxState,
];
