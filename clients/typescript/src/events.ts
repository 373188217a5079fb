/** Event streams: a parser of server-sent events, and the events of commands. It does no I/O. */

import { CommandFailed, ConnectionLost, ProtocolError } from "./errors.js";
import { change, type Change } from "./models.js";
import { record } from "./reading.js";

/** Maximum size of one event and of one line. The service sends at most 90 KiB. */
export const MAX_EVENT = 4 * 1024 * 1024;
const MAX_CODE = 255;

/** One of the two output streams of a command. */
export type StreamName = "stdout" | "stderr";

/**
 * Bytes that a command wrote.
 *
 * `text` is UTF-8, with U+FFFD for other bytes. It has complete characters: the rest follows.
 */
export interface Output {
  type: "output";
  stream: StreamName;
  data: Uint8Array;
  text: string;
}

/** The service no longer has `count` bytes of the output at this place. */
export interface Dropped {
  type: "dropped";
  count: number;
}

/** The command ended. `code` is 124 after a timeout, and 128 plus the number of a signal. */
export interface Exit {
  type: "exit";
  code: number;
}

/** One event of a command. */
export type CommandEvent = Output | Dropped | Exit;

/** Bytes that the command wrote in one of several boxes. */
export interface BatchOutput {
  type: "output";
  box: string;
  stream: StreamName;
  data: Uint8Array;
  text: string;
}

/** The command ended in one of several boxes. */
export interface BatchExit {
  type: "exit";
  box: string;
  code: number;
}

/** The command did not run to its end in one of several boxes. */
export interface BatchError {
  type: "error";
  box: string;
  status: number;
  error: string;
}

/** One event of a command in several boxes. */
export type BatchEvent = BatchOutput | BatchExit | BatchError;

/** The exit code and the output of a command. `stdoutBytes` and `stderrBytes` are exact. */
export class Result {
  readonly exitCode: number;
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;

  constructor(exitCode: number, stdoutBytes: Uint8Array, stderrBytes: Uint8Array) {
    this.exitCode = exitCode;
    this.stdoutBytes = stdoutBytes;
    this.stderrBytes = stderrBytes;
  }

  /** The standard output as UTF-8, with U+FFFD for other bytes. */
  get stdout(): string {
    return decoded(this.stdoutBytes);
  }

  /** The standard error as UTF-8, with U+FFFD for other bytes. */
  get stderr(): string {
    return decoded(this.stderrBytes);
  }

  /** Return the result itself. Throws `CommandFailed` if the exit code is not 0. */
  check(): this {
    if (this.exitCode === 0) return this;
    const last = (this.stderr.trim().split("\n").at(-1) ?? "").slice(0, 200);
    const detail = last === "" ? "" : `: ${last}`;
    throw new CommandFailed(`the command ended with code ${this.exitCode}${detail}`, this);
  }
}

/** One server-sent event. `id` is that of this event, or null. */
export interface ServerEvent {
  name: string;
  data: string;
  id: string | null;
}

const LF = 10;
const CR = 13;
const COLON = 58;

/** Splits bytes into events. Lines end with LF, CR LF or CR; comments are dropped. */
export class EventParser {
  readonly #limit: number;
  #pieces: Uint8Array[] = [];
  #length = 0;
  #afterCr = false;
  #name = "";
  #data: string[] = [];
  #size = 0;
  #id: string | null = null;

  constructor(limit = MAX_EVENT) {
    this.#limit = limit;
  }

  /** Return the events that the chunk completes. Throws `ProtocolError`. */
  feed(chunk: Uint8Array): ServerEvent[] {
    const events: ServerEvent[] = [];
    let start = 0;
    if (this.#afterCr && chunk.length > 0) {
      if (chunk[0] === LF) start = 1;
      this.#afterCr = false;
    }
    for (let place = start; place < chunk.length; place++) {
      const byte = chunk[place];
      if (byte !== LF && byte !== CR) continue;
      this.#line(this.#taken(chunk.subarray(start, place)), events);
      if (byte === CR) {
        if (place + 1 === chunk.length) this.#afterCr = true;
        else if (chunk[place + 1] === LF) place++;
      }
      start = place + 1;
    }
    if (start < chunk.length) {
      this.#pieces.push(chunk.slice(start));
      this.#length += chunk.length - start;
    }
    if (this.#length > this.#limit) {
      throw new ProtocolError(`a line of the event stream exceeds ${this.#limit} bytes`);
    }
    return events;
  }

  #taken(end: Uint8Array): Uint8Array {
    if (this.#length === 0) return end;
    const line = joined([...this.#pieces, end], this.#length + end.length);
    this.#pieces = [];
    this.#length = 0;
    return line;
  }

  #line(line: Uint8Array, events: ServerEvent[]): void {
    if (line.length === 0) {
      const event = this.#event();
      if (event !== null) events.push(event);
      return;
    }
    if (line[0] === COLON) return;
    this.#size += line.length;
    if (this.#size > this.#limit) throw new ProtocolError(`an event exceeds ${this.#limit} bytes`);
    const text = strict(line, "the event stream");
    const colon = text.indexOf(":");
    const name = colon < 0 ? text : text.slice(0, colon);
    let value = colon < 0 ? "" : text.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "event") this.#name = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }

  #event(): ServerEvent | null {
    const [name, data, id] = [this.#name, this.#data, this.#id];
    this.#name = "";
    this.#data = [];
    this.#size = 0;
    this.#id = null;
    if (data.length === 0 && name === "") return null;
    return { name: name === "" ? "message" : name, data: data.join("\n"), id };
  }
}

/**
 * Turns the events of one command into `Output`, `Dropped` and `Exit`.
 *
 * `exit` must be the last one. Events with unknown names are ignored.
 */
export class CommandEvents {
  /** The end of the command; null: it has not ended. */
  exit: Exit | null = null;
  readonly #decoders = {
    stdout: new TextDecoder("utf-8", { ignoreBOM: true }),
    stderr: new TextDecoder("utf-8", { ignoreBOM: true }),
  };

  /**
   * Return the meaning of an event.
   *
   * Throws `ProtocolError`, or `ConnectionLost` if the service could not continue.
   */
  take(event: ServerEvent): CommandEvent | null {
    if (this.exit !== null) {
      throw new ProtocolError(`the event '${shown(event.name)}' follows the end of the command`);
    }
    if (event.name === "stdout" || event.name === "stderr") {
      const data = decodeBase64(event.data);
      const text = this.#decoders[event.name].decode(data, { stream: true });
      return { type: "output", stream: event.name, data, text };
    }
    if (event.name === "dropped") {
      return { type: "dropped", count: countIn(members(event)) };
    }
    if (event.name === "exit") {
      this.exit = { type: "exit", code: exitCode(members(event)) };
      return this.exit;
    }
    if (event.name === "failed") throw new ConnectionLost(textIn(members(event), "error"));
    return null;
  }
}

/** Turns the events of a command in several boxes into values. `done` must be the last one. */
export class BatchEvents {
  /** Whether the last event arrived. */
  done = false;
  readonly #ended = new Set<string>();

  /** Return the meaning of an event. Throws `ProtocolError`. */
  take(event: ServerEvent): BatchEvent | null {
    if (this.done) throw new ProtocolError(`the event '${shown(event.name)}' follows the last one`);
    if (event.name === "done") {
      this.done = true;
      return null;
    }
    const { name } = event;
    if (name !== "stdout" && name !== "stderr" && name !== "exit" && name !== "failed") return null;
    const body = members(event);
    const box = textIn(body, "box");
    if (this.#ended.has(box)) {
      throw new ProtocolError(`the event '${name}' follows the end of box '${shown(box)}'`);
    }
    if (name === "stdout" || name === "stderr") {
      const data = decodeBase64(textIn(body, "data"));
      return { type: "output", box, stream: name, data, text: decoded(data) };
    }
    this.#ended.add(box);
    if (name === "exit") return { type: "exit", box, code: exitCode(body) };
    const status = wholeIn(body, "status");
    return { type: "error", box, status, error: textIn(body, "error") };
  }
}

/** Turns the events of a watch into `Change`. `end` must be the last one. */
export class WatchEvents {
  /** Whether the last event arrived. */
  ended = false;

  /**
   * Return the meaning of an event.
   *
   * Throws `ProtocolError`, or `ConnectionLost` if the service could not continue.
   */
  take(event: ServerEvent): Change | null {
    if (this.ended) throw new ProtocolError(`the event '${shown(event.name)}' follows the last one`);
    if (event.name === "change") return change(members(event), "change");
    if (event.name === "overflow") return { kind: "overflow", path: "", is_dir: false, source: null };
    if (event.name === "failed") throw new ConnectionLost(textIn(members(event), "error"));
    this.ended = event.name === "end";
    return null;
  }
}

const NOT_BASE64 = /[^A-Za-z0-9+/=]/;

/** Return the bytes of base64 text. Throws `ProtocolError`. */
export function decodeBase64(text: string): Uint8Array {
  let binary: string;
  try {
    // `atob` also accepts white space, and text without padding.
    if (text.length % 4 !== 0 || NOT_BASE64.test(text)) throw new TypeError("not base64");
    binary = atob(text);
  } catch {
    throw new ProtocolError("the output of a command is not base64");
  }
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  return bytes;
}

/** Return all pieces as one array of `length` bytes. */
export function joined(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let place = 0;
  for (const piece of pieces) {
    bytes.set(piece, place);
    place += piece.length;
  }
  return bytes;
}

/** Return bytes as UTF-8, with U+FFFD for other bytes. A byte order mark stays. */
export function decoded(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

/** Return bytes that must be UTF-8. `what` names them in the `ProtocolError`. */
export function strict(bytes: Uint8Array, what: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new ProtocolError(`${what} is not UTF-8`);
  }
}

/** Return the value of JSON text. `what` names it in the `ProtocolError`. */
export function parsed(text: string, what: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw new ProtocolError(`${what} is not valid JSON`);
  }
}

function shown(name: string): string {
  return name.slice(0, 80);
}

function members(event: ServerEvent): Record<string, unknown> {
  return record(parsed(event.data, "the data of an event"), "the data of an event");
}

function exitCode(body: Record<string, unknown>): number {
  const { code } = body;
  if (typeof code !== "number" || !Number.isInteger(code) || code < 0 || code > MAX_CODE) {
    throw new ProtocolError("the end of a command has no exit code");
  }
  return code;
}

function textIn(body: Record<string, unknown>, name: string): string {
  const value = body[name];
  if (typeof value === "string") return value;
  throw new ProtocolError(`the data of an event has no text '${name}'`);
}

function wholeIn(body: Record<string, unknown>, name: string): number {
  const value = body[name];
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  throw new ProtocolError(`the data of an event has no number '${name}'`);
}

function countIn(body: Record<string, unknown>): number {
  return wholeIn(body, "bytes" in body ? "bytes" : "count");
}
