/** The client: the way to all objects of an account. */

import { Box, EXEC_S, MARGIN_S, removedAfter } from "./box.js";
import {
  Agents,
  Asks,
  Boxes,
  Keys,
  Profiles,
  Secrets,
  Shares,
  Workspaces,
} from "./collections.js";
import { load } from "./config.js";
import type { BatchEvent } from "./events.js";
import { Drive } from "./files.js";
import { identity, stat, type Identity, type Stat } from "./models.js";
import {
  callOf,
  jsonRequest,
  randomHex,
  RetryPolicy,
  valueOf,
  type CallOptions,
} from "./protocol.js";
import { list } from "./reading.js";
import { batchEvents, EventStream } from "./streams.js";
import type { WebSocketClass } from "./terminal.js";
import { Transport, type Fetch } from "./transport.js";

/** Seconds within which an answer must be complete, and a stream must begin. */
const TIMEOUT_S = 120;
/** Deadline of a temporary box, for the case that its program dies. */
const TEMPORARY = "1h";

/** Options of a client. */
export interface ClientOptions {
  /** The URL of the service. Default in Node.js: BOXD_URL. */
  url?: string;
  /** The API key. Default in Node.js: BOXD_API_KEY. */
  key?: string;
  /** Seconds within which an answer must be complete, and a stream must begin. Default: 120. */
  timeoutSeconds?: number;
  /** How often requests are repeated. */
  retries?: RetryPolicy;
  /** A function instead of the global `fetch`. */
  fetch?: Fetch;
  /** A class for terminals instead of the global `WebSocket`, called as that of the package ws. */
  WebSocket?: WebSocketClass;
}

/** A client of one service with one API key. */
export class Client {
  readonly boxes: Boxes;
  readonly workspaces: Workspaces;
  readonly profiles: Profiles;
  readonly secrets: Secrets;
  readonly keys: Keys;
  readonly shares: Shares;
  readonly agent: Agents;
  readonly asks: Asks;
  readonly #transport: Transport;
  readonly #sockets: WebSocketClass | undefined;

  /** Throws `ConfigurationError` if the URL or the key is missing or cannot be valid. */
  constructor(options: ClientOptions = {}) {
    const settings = load(options.url, options.key);
    const retries = options.retries ?? new RetryPolicy();
    const fetch: Fetch = options.fetch ?? ((url, request) => globalThis.fetch(url, request));
    const transport = new Transport(settings, options.timeoutSeconds ?? TIMEOUT_S, retries, fetch);
    this.#transport = transport;
    this.#sockets = options.WebSocket;
    this.boxes = new Boxes(transport, options.WebSocket);
    this.workspaces = new Workspaces(transport);
    this.profiles = new Profiles(transport);
    this.secrets = new Secrets(transport);
    this.keys = new Keys(transport);
    this.shares = new Shares(transport);
    this.agent = new Agents(transport);
    this.asks = new Asks(transport);
  }

  /** The URL of the service. */
  get url(): string {
    return this.#transport.settings.url;
  }

  /** Return the box of a reference: `name`, or `workspace/name`. It sends nothing. */
  box(ref: string): Box {
    return new Box(this.#transport, ref, this.#sockets);
  }

  /** Create a box with a random name, call a function with it, and remove it. */
  async temporary<T>(
    use: (box: Box) => Promise<T>,
    options: CallOptions & { image?: string } = {},
  ): Promise<T> {
    const created = { deadline: TEMPORARY, ...options };
    return removedAfter(await this.boxes.create(`tmp-${randomHex(4)}`, created), use);
  }

  /** Return the files of the drive of a workspace, which boxes see below /wrk. */
  drive(workspace?: string): Drive {
    return new Drive(this.#transport, "/v1/wrk", workspace);
  }

  /** Run a command in at most 32 boxes at once and return a stream of their output. */
  batch(
    boxes: readonly string[],
    cmd: string,
    options: {
      env?: Record<string, string>;
      stdin?: string;
      timeoutSeconds?: number;
      signal?: AbortSignal;
    } = {},
  ): EventStream<BatchEvent> {
    const { env, stdin, timeoutSeconds = EXEC_S } = options;
    const body = { boxes, cmd, env, stdin, timeout_s: timeoutSeconds };
    const request = jsonRequest("POST", "/v1/batch/exec", body);
    const budget = timeoutSeconds + MARGIN_S;
    return new EventStream(
      (signal) => batchEvents(this.#transport, { ...request, signal }, budget),
      options.signal,
    );
  }

  /** Return the account of the API key. */
  async whoami(options: CallOptions = {}): Promise<Identity> {
    const request = { ...callOf(options), method: "GET", path: "/v1/whoami", retry: "safe" } as const;
    return valueOf(await this.#transport.send(request), identity);
  }

  /** Return use and limits of the account. */
  async stat(options: CallOptions = {}): Promise<Stat[]> {
    const request = { ...callOf(options), method: "GET", path: "/v1/stat", retry: "safe" } as const;
    return valueOf(await this.#transport.send(request), list(stat));
  }
}
