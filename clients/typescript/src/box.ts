/** One box: its state, commands, files, terminals, ports, forks and snapshots. */

import { Command } from "./commands.js";
import { InvalidRequest, NotFound, ServiceError } from "./errors.js";
import { type Result } from "./events.js";
import { BoxFiles } from "./files.js";
import {
  boxInfo,
  boxState,
  commandInfo,
  newShare,
  port as portReader,
  share as shareReader,
  snapshot as snapshotReader,
  stat as statReader,
  type BoxInfo,
  type CommandInfo,
  type NewShare,
  type Port,
  type Share,
  type Snapshot,
  type Stat,
  type Change,
} from "./models.js";
import {
  callOf,
  filePath,
  jsonRequest,
  MAX_JSON,
  randomHex,
  segment,
  valueOf,
  type Answer,
  type CallOptions,
  type Content,
  type Request,
  type Retry,
} from "./protocol.js";
import { list } from "./reading.js";
import { CommandStream, commandEvents, EventStream, watchEvents } from "./streams.js";
import { openTerminal, type Terminal, type WebSocketClass } from "./terminal.js";
import type { Transport } from "./transport.js";

/** Seconds after which the service ends a command by default. */
export const EXEC_S = 300;
/** Seconds that the stream of a command may take in addition to the command. */
export const MARGIN_S = 120;
const EXEC_TYPE = "application/x-svc-exec";
const SPEC = /[+!:^]/;
const ALL_STATUSES = Array.from({ length: 400 }, (_, index) => index + 200);

/** Options of a command. */
export interface ExecOptions {
  /** Variables of the command. */
  env?: Record<string, string>;
  /** Standard input. All of it may be sent before the first output is read. */
  stdin?: Content;
  /** Seconds after which the service ends the command, with the exit code 124. Default: 300. */
  timeoutSeconds?: number;
  /** Ends the command. */
  signal?: AbortSignal;
}

/** Options of a background command. */
export interface StartOptions extends Pick<CallOptions, "signal"> {
  /** Variables of the command. */
  env?: Record<string, string>;
  /** Seconds after which the service ends the command. Default: never. */
  timeoutSeconds?: number;
  /** The standard input is open for `write`. */
  stdin?: boolean;
  /** The box stays awake while the command runs. Default: true. */
  keepAwake?: boolean;
}

/** The answer of a program that listens on a port of a box. */
export interface PortAnswer {
  status: number;
  headers: Headers;
  body: Uint8Array;
}

/**
 * A box by its reference: `name`, or `workspace/name`. Creating the object sends nothing.
 *
 * `exec` and `stream` create the box if it does not exist, and wake it if it is suspended.
 */
export class Box {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #sockets: WebSocketClass | undefined;

  constructor(
    transport: Transport,
    readonly ref: string,
    sockets?: WebSocketClass,
  ) {
    if (SPEC.test(ref)) {
      throw new InvalidRequest(`'${ref}' is a spec; create such a box with boxes.create`);
    }
    this.#transport = transport;
    this.#path = `/v1/boxes/${segment(ref, "box")}`;
    this.#sockets = sockets;
  }

  /** The files of the box. */
  get files(): BoxFiles {
    return new BoxFiles(this.#transport, `${this.#path}/files`);
  }

  /**
   * Run a command in the login shell of the box and return its code and its output.
   *
   * With `check`, another code than 0 throws `CommandFailed`. Output of more than `limit` bytes
   * (default: 64 MiB) throws `AnswerTooLarge`.
   */
  async exec(
    cmd: string,
    options: ExecOptions & { check?: boolean; limit?: number } = {},
  ): Promise<Result> {
    const result = await this.stream(cmd, options).collect(options.limit);
    return options.check === true ? result.check() : result;
  }

  /** Run a command and return a stream of its output. The command ends with the stream. */
  stream(cmd: string, options: ExecOptions = {}): CommandStream {
    const { env, stdin = "", timeoutSeconds = EXEC_S } = options;
    const head = `${JSON.stringify({ cmd, env, timeout_s: timeoutSeconds })}\n`;
    const request: Request = {
      method: "POST",
      path: `/v1/exec/${segment(this.ref, "box")}`,
      headers: { "Content-Type": EXEC_TYPE },
      content: stdin,
    };
    const budget = timeoutSeconds + MARGIN_S;
    return new CommandStream(
      (signal) => commandEvents(this.#transport, { ...request, signal }, budget, head),
      options.signal,
    );
  }

  /** Start a background command, which runs on after the connection ends. */
  async start(cmd: string, options: StartOptions = {}): Promise<Command> {
    const { env, timeoutSeconds, stdin, keepAwake } = options;
    const body = { cmd, env, timeout_s: timeoutSeconds, stdin, keep_awake: keepAwake };
    const more = { signal: options.signal, retry: "keyed" } as const;
    const request = jsonRequest("POST", `${this.#path}/commands`, body, more);
    const info = valueOf(await this.#transport.send(request), commandInfo);
    return this.command(info.id);
  }

  /** Return the background command of an id. It sends nothing. */
  command(id: string): Command {
    return new Command(this.#transport, this.ref, id);
  }

  /** Return the background commands of the box. */
  async commands(options: CallOptions = {}): Promise<CommandInfo[]> {
    return valueOf(await this.#send("GET", "/commands", "safe", options), list(commandInfo));
  }

  /**
   * Return a stream of changes in a directory of the box.
   *
   * `recursive` includes the directories below it. The drive cannot be watched.
   */
  watch(
    path: string,
    options: { recursive?: boolean; signal?: AbortSignal } = {},
  ): EventStream<Change> {
    const params = { path, recursive: options.recursive };
    const request: Request = { method: "GET", path: `${this.#path}/watch`, params };
    return new EventStream(
      (signal) => watchEvents(this.#transport, { ...request, signal }),
      options.signal,
    );
  }

  /** Open a login shell on a terminal. The box must exist. Close the terminal after use. */
  async terminal(
    options: CallOptions & { cols?: number; rows?: number } = {},
  ): Promise<Terminal> {
    const { cols = 80, rows = 24, signal } = options;
    const { settings } = this.#transport;
    const path = `${this.#path}/term`;
    const request: Request = { method: "GET", path, params: { cols, rows }, signal };
    const seconds = options.timeoutSeconds ?? this.#transport.timeoutSeconds;
    try {
      return await openTerminal(settings, request, this.#sockets, seconds);
    } catch (error) {
      // A WebSocket does not tell why the service refused it.
      const asked = await this.#send("HEAD", "/term", "safe", options).catch((one: unknown) => one);
      if (asked instanceof ServiceError && asked.status !== 426) throw asked;
      throw error;
    }
  }

  /** Return the state of the box and its current use. */
  async info(options: CallOptions = {}): Promise<BoxInfo> {
    return valueOf(await this.#send("GET", "", "safe", options), boxInfo);
  }

  /** Return whether the box exists. */
  async exists(options: CallOptions = {}): Promise<boolean> {
    try {
      await this.info(options);
      return true;
    } catch (error) {
      if (error instanceof NotFound) return false;
      throw error;
    }
  }

  /** Remove the box with everything in it. A pinned box is removed only with `force`. */
  async remove(options: CallOptions & { force?: boolean } = {}): Promise<void> {
    const params = { force: options.force };
    const request = { ...callOf(options), method: "DELETE", path: this.#path, params };
    await this.#transport.send({ ...request, retry: "safe" });
  }

  /** Save the memory of the box and stop it. Return its state. */
  async suspend(options: CallOptions = {}): Promise<string> {
    return valueOf(await this.#send("POST", "/suspend", "safe", options), boxState).state;
  }

  /** Wake the box. Return its state. */
  async resume(options: CallOptions = {}): Promise<string> {
    return valueOf(await this.#send("POST", "/resume", "safe", options), boxState).state;
  }

  /** Make the box durable: the service removes it only at its deadline. `off` undoes that. */
  async keep(options: CallOptions & { off?: boolean } = {}): Promise<BoxInfo> {
    const params = { off: options.off };
    const path = `${this.#path}/keep`;
    const request: Request = { ...callOf(options), method: "POST", path, params, retry: "safe" };
    return valueOf(await this.#transport.send(request), boxInfo);
  }

  /** Keep the box awake and protect it from removal for a time. Default: 2 hours. */
  async pin(options: CallOptions & { seconds?: number; why?: string } = {}): Promise<BoxInfo> {
    const body = { for_s: options.seconds, why: options.why };
    const more = { ...callOf(options), retry: "safe" } as const;
    const request = jsonRequest("PUT", `${this.#path}/pin`, body, more);
    return valueOf(await this.#transport.send(request), boxInfo);
  }

  /** Remove the pin. */
  async unpin(options: CallOptions = {}): Promise<BoxInfo> {
    return valueOf(await this.#send("DELETE", "/pin", "safe", options), boxInfo);
  }

  /** Copy the running box, with its memory, into a new one. Return the copy. */
  async fork(name: string, options: CallOptions = {}): Promise<Box> {
    return this.#create(`${this.#path}/fork`, name, options);
  }

  /** Fork the box, call a function with the copy, and remove the copy. */
  async withFork<T>(use: (box: Box) => Promise<T>, options: CallOptions = {}): Promise<T> {
    const box = await this.fork(`fork-${randomHex(4)}`, options);
    return removedAfter(box, use);
  }

  /** Return the snapshots of the box. */
  async snapshots(options: CallOptions = {}): Promise<Snapshot[]> {
    return valueOf(await this.#send("GET", "/snapshots", "safe", options), list(snapshotReader));
  }

  /** Save the disk and the memory of the box. */
  async snapshot(name?: string, options: CallOptions = {}): Promise<Snapshot> {
    const more = { ...callOf(options), retry: "keyed" } as const;
    const request = jsonRequest("POST", `${this.#path}/snapshots`, { name }, more);
    return valueOf(await this.#transport.send(request), snapshotReader);
  }

  /** Replace disk and memory of the box by those of a snapshot. */
  async restore(snapshot: string, options: CallOptions = {}): Promise<BoxInfo> {
    const path = `/snapshots/${segment(snapshot, "snapshot")}/restore`;
    return valueOf(await this.#send("POST", path, "never", options), boxInfo);
  }

  /** Create a new box from a snapshot. */
  async forkSnapshot(snapshot: string, name: string, options: CallOptions = {}): Promise<Box> {
    const path = `${this.#path}/snapshots/${segment(snapshot, "snapshot")}/fork`;
    return this.#create(path, name, options);
  }

  /** Remove a snapshot. */
  async removeSnapshot(snapshot: string, options: CallOptions = {}): Promise<void> {
    await this.#send("DELETE", `/snapshots/${segment(snapshot, "snapshot")}`, "safe", options);
  }

  /** Return use and limits of the box. */
  async stat(options: CallOptions = {}): Promise<Stat[]> {
    return valueOf(await this.#send("GET", "/stat", "safe", options), list(statReader));
  }

  /** Return the TCP ports on which programs in the box listen, and their preview URLs. */
  async ports(options: CallOptions = {}): Promise<Port[]> {
    return valueOf(await this.#send("GET", "/ports", "safe", options), list(portReader));
  }

  /**
   * Return the URL that opens a port in a browser; null: the service has no previews.
   *
   * Throws `NotFound` if no program listens on the port.
   */
  async previewUrl(port: number, options: CallOptions = {}): Promise<string | null> {
    const found = (await this.ports(options)).find((one) => one.port === port);
    if (found !== undefined) return found.url;
    throw new NotFound(`no program in box ${this.ref} listens on port ${port}`, 404);
  }

  /** Return the URL of a port below the API. A request to it needs the API key. */
  portUrl(port: number, path = ""): string {
    return `${this.#transport.settings.url}${this.#path}/proxy/${port}/${filePath(path)}`;
  }

  /**
   * Send an HTTP request to a program that listens on a port of the box.
   *
   * The answer has any status of the program. A status of 502 or 504 may be the service's.
   */
  async request(
    port: number,
    path = "/",
    options: CallOptions & {
      method?: string;
      headers?: Record<string, string>;
      content?: Content;
    } = {},
  ): Promise<PortAnswer> {
    const mark = path.indexOf("?");
    const place = filePath(mark < 0 ? path : path.slice(0, mark));
    const query = mark < 0 ? "" : path.slice(mark);
    const request: Request = {
      ...callOf(options),
      method: options.method ?? "GET",
      path: `${this.#path}/proxy/${port}/${place}${query}`,
      headers: options.headers ?? {},
      content: options.content,
    };
    const body = await this.#transport.open(request, ALL_STATUSES);
    try {
      return body.answer(await body.collect(MAX_JSON));
    } finally {
      body.close();
    }
  }

  /** Return the shares of the box. */
  async shares(options: CallOptions = {}): Promise<Share[]> {
    return valueOf(await this.#send("GET", "/shares", "safe", options), list(shareReader));
  }

  /** Let somebody else log in to the box. Only this answer has the token. */
  async share(options: CallOptions & { seconds?: number } = {}): Promise<NewShare> {
    const more = { ...callOf(options), retry: "keyed" } as const;
    const body = { ttl_s: options.seconds };
    const request = jsonRequest("POST", `${this.#path}/shares`, body, more);
    return valueOf(await this.#transport.send(request), newShare);
  }

  async #create(path: string, name: string, options: CallOptions): Promise<Box> {
    const more = { ...callOf(options), retry: "keyed" } as const;
    const answer = await this.#transport.send(jsonRequest("POST", path, { name }, more));
    return new Box(this.#transport, valueOf(answer, boxInfo).ref, this.#sockets);
  }

  #send(method: string, path: string, retry: Retry, options: CallOptions): Promise<Answer> {
    const request = { ...callOf(options), method, path: this.#path + path, retry };
    return this.#transport.send(request);
  }
}

/** Call a function with a box, and remove the box after it. An error of the function prevails. */
export async function removedAfter<T>(box: Box, use: (box: Box) => Promise<T>): Promise<T> {
  let result: T;
  try {
    result = await use(box);
  } catch (error) {
    await box.remove({ force: true }).catch(() => undefined);
    throw error;
  }
  await box.remove({ force: true });
  return result;
}
