/** Files of a box and of a drive. */

import { AnswerTooLarge, ConnectionLost, InvalidRequest, NotFound, ProtocolError } from "./errors.js";
import { joined } from "./events.js";
import { listing, type Entry, type Listing } from "./models.js";
import {
  callOf,
  filePath,
  JSON_TYPE,
  mediaType,
  valueOf,
  type Answer,
  type CallOptions,
  type Content,
  type Params,
  type Request,
} from "./protocol.js";
import type { Body, Transport } from "./transport.js";

/** Default limit on a file that is read into memory, in bytes. */
const MAX_FILE = 256 * 1024 * 1024;
const PAGE = 1000;
/** Default limit on the entries of a directory. */
const MAX_ENTRIES = 1_000_000;
const RANGE = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/;

/** A part of a file: the bytes from `start` up to, not including, `end`. */
export interface Span {
  start?: number;
  end?: number;
}

/** The size of a file in bytes, and its entity tag. */
export interface FileStat {
  size: number;
  etag: string | null;
}

/** Files below one root: those of a box, or those of a drive. Paths begin at the root. */
export class Files {
  protected readonly transport: Transport;
  protected readonly params: Params;
  /** Parameters of one page of a directory. */
  protected readonly pages: Params = {};
  readonly #root: string;

  constructor(transport: Transport, root: string, workspace?: string) {
    this.transport = transport;
    this.params = { ws: workspace };
    this.#root = root;
  }

  /**
   * Return the bytes of a file, or of a part of it.
   *
   * Throws `AnswerTooLarge` if they exceed `limit` bytes; `readStream` has no limit.
   */
  async read(
    path: string,
    options: CallOptions & Span & { limit?: number } = {},
  ): Promise<Uint8Array> {
    const limit = options.limit ?? MAX_FILE;
    const pieces: Uint8Array[] = [];
    let size = 0;
    for await (const chunk of this.readStream(path, options)) {
      pieces.push(chunk);
      size += chunk.length;
      if (size > limit) throw new AnswerTooLarge(`${path} exceeds ${limit} bytes; use readStream`);
    }
    return joined(pieces, size);
  }

  /** Return a file that is UTF-8 text. Throws `TypeError` if it is not. */
  async readText(path: string, options: CallOptions = {}): Promise<string> {
    const bytes = await this.read(path, options);
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  }

  /** Yield the bytes of a file, or of a part of it. Throws `ConnectionLost` if they are cut. */
  async *readStream(
    path: string,
    options: CallOptions & Span = {},
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const { start = 0, end } = options;
    checkSpan(start, end);
    const ranged = start > 0 || end !== undefined;
    const headers: Record<string, string> = {};
    if (ranged) headers["Range"] = `bytes=${start}-${end === undefined ? "" : end - 1}`;
    const request = { ...callOf(options), method: "GET", path: this.path(path), headers };
    const body = await this.transport.open({ ...request, params: this.params }, [200, 206]);
    try {
      if (isListing(body)) throw new InvalidRequest(`${path} is a directory, not a file`);
      const size = ranged ? rangeSize(body, start, end) : wholeSize(body);
      yield* exactly(body, size);
    } finally {
      body.close();
    }
  }

  /**
   * Write a file and create missing parents. `mode`: permissions, only in a box.
   *
   * A stream is not sent again after a failure.
   */
  async write(
    path: string,
    content: Content,
    options: CallOptions & { mode?: number } = {},
  ): Promise<void> {
    const mode = options.mode?.toString(8).padStart(4, "0");
    await this.transport.send({
      ...callOf(options),
      method: "PUT",
      path: this.path(path),
      params: { ...this.params, mode },
      headers: { "Content-Type": "application/octet-stream" },
      content,
      retry: "safe",
    });
  }

  /**
   * Return all entries of a directory, sorted by name.
   *
   * Throws `AnswerTooLarge` if there are more than `limit` entries (default: 1 000 000).
   */
  async list(path = "", options: CallOptions & { limit?: number } = {}): Promise<Entry[]> {
    const limit = options.limit ?? MAX_ENTRIES;
    const entries: Entry[] = [];
    const cursors = new Set<string>();
    let cursor: string | null = null;
    for (;;) {
      const page: Listing = await this.#page(path, cursor, options);
      for (const entry of page.entries) entries.push(entry);
      if (entries.length > limit) {
        throw new AnswerTooLarge(`'${path}' has more than ${limit} entries`);
      }
      cursor = page.next;
      if (cursor === null) return entries;
      if (cursors.has(cursor)) throw new ProtocolError(`the pages of '${path}' do not end`);
      cursors.add(cursor);
    }
  }

  /** Create a directory and missing parents. */
  async makeDirectory(path: string, options: CallOptions = {}): Promise<void> {
    await this.#send("PUT", directory(this.path(path)), options);
  }

  /** Remove a file, or a directory with everything in it. */
  async remove(path: string, options: CallOptions = {}): Promise<void> {
    await this.#send("DELETE", this.path(path), options);
  }

  /** Return whether a file or directory exists. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    const request = { ...callOf(options), method: "GET", path: this.path(path) };
    try {
      const body = await this.transport.open({ ...request, params: this.params }, [200]);
      body.close();
      return true;
    } catch (error) {
      if (error instanceof NotFound) return false;
      throw error;
    }
  }

  /** Return the size and the entity tag of a file. */
  async stat(path: string, options: CallOptions = {}): Promise<FileStat> {
    const answer = await this.#send("HEAD", this.path(path), options);
    const length = answer.headers.get("content-length") ?? "";
    if (!/^\d{1,15}$/.test(length)) throw new ProtocolError(`the answer has no size of '${path}'`);
    return { size: Number(length), etag: answer.headers.get("etag") };
  }

  protected path(path: string): string {
    return `${this.#root}/${filePath(path)}`;
  }

  #send(method: string, path: string, options: CallOptions): Promise<Answer> {
    const { params } = this;
    return this.transport.send({ ...callOf(options), method, path, params, retry: "safe" });
  }

  async #page(path: string, cursor: string | null, options: CallOptions): Promise<Listing> {
    const place = directory(this.path(path));
    const params = { ...this.params, ...this.pages, cursor };
    const request: Request = { ...callOf(options), method: "GET", path: place, params };
    const answer = await this.transport.send({ ...request, retry: "safe" });
    if (!isListing(answer)) throw new NotFound(`'${path}' is a file, not a directory`, 404);
    return valueOf(answer, listing);
  }
}

/** Files of a box. `/etc/hosts` and `etc/hosts` are the same file. */
export class BoxFiles extends Files {}

/** Files of a drive, which boxes see below `/wrk`. `notes.txt` is `/wrk/notes.txt`. */
export class Drive extends Files {
  protected override readonly pages: Params = { limit: PAGE };

  /** Move or rename a file or directory. `replace`: also onto a file or empty directory. */
  async move(
    source: string,
    target: string,
    options: CallOptions & { replace?: boolean } = {},
  ): Promise<void> {
    const params = { ...this.params, from: source, to: target, replace: options.replace };
    await this.transport.send({ ...callOf(options), method: "POST", path: "/v1/drive/move", params });
  }

  /** Copy a file or directory without copying its bytes. The target must not exist. */
  async copy(source: string, target: string, options: CallOptions = {}): Promise<void> {
    const params = { ...this.params, from: source, to: target };
    const path = "/v1/drive/clone";
    await this.transport.send({ ...callOf(options), method: "POST", path, params });
  }
}

function directory(path: string): string {
  return `${path.replace(/\/+$/, "")}/`;
}

function checkSpan(start: number, end: number | undefined): void {
  if (!Number.isSafeInteger(start) || start < 0) {
    throw new InvalidRequest(`${start} is not the start of a part of a file`);
  }
  if (end !== undefined && (!Number.isSafeInteger(end) || end <= start)) {
    throw new InvalidRequest(`${end} is not an end after ${start}`);
  }
}

/** Return whether an answer is a directory. The answer for a file has the time of its change. */
function isListing(answer: { headers: Headers }): boolean {
  return mediaType(answer.headers) === JSON_TYPE && !answer.headers.has("last-modified");
}

/** Yield the body. Throws `ConnectionLost` or `ProtocolError` if it has another size. */
async function* exactly(
  body: Body,
  size: number | null,
): AsyncGenerator<Uint8Array, void, undefined> {
  let count = 0;
  for await (const chunk of body.chunks()) {
    count += chunk.length;
    if (size !== null && count > size) {
      throw new ProtocolError(`the answer has more than the announced ${size} bytes`);
    }
    yield chunk;
  }
  if (size !== null && count < size) {
    throw new ConnectionLost(`the answer ended after ${count} of ${size} bytes`);
  }
}

function wholeSize(body: Body): number | null {
  if (body.status !== 200) {
    throw new ProtocolError("the answer is a part of the file, but the request is for all of it");
  }
  return body.length;
}

/** Return the size of a requested range. Throws `ProtocolError` if it is another range. */
function rangeSize(body: Body, start: number, end: number | undefined): number {
  const match = RANGE.exec(body.headers.get("content-range") ?? "");
  if (body.status !== 206 || match === null) {
    throw new ProtocolError("the answer is not the requested part of the file");
  }
  const [first, last] = [Number(match[1]), Number(match[2])];
  if (first !== start || last < first || (end !== undefined && last >= end)) {
    throw new ProtocolError(`the answer is bytes ${first} to ${last} instead of the requested ones`);
  }
  const total = match[3] === "*" ? null : Number(match[3]);
  if (total !== null && last !== Math.min(total, end ?? total) - 1) {
    throw new ProtocolError(`the answer ends at byte ${last}, before the requested part`);
  }
  return last - first + 1;
}
