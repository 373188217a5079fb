/** The rules of the HTTP API: requests, answers, errors and retries. It does no I/O. */

import { classOf, InvalidRequest, ProtocolError, QuotaExceeded, Unavailable } from "./errors.js";
import type { ServiceError } from "./errors.js";
import { parsed, strict } from "./events.js";
import type { Reader } from "./reading.js";

export const VERSION = "0.1.0";
/** Maximum size of a JSON answer in bytes. */
export const MAX_JSON = 64 * 1024 * 1024;
/** Maximum size of the body of an error that is read, in bytes. */
export const MAX_ERROR = 64 * 1024;
const MAX_ERROR_TEXT = 2000;
export const JSON_TYPE = "application/json";
export const EVENT_TYPE = "text/event-stream";

/** Input of a command, or content of a file. Texts are sent as UTF-8. */
export type Content =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array | string>;

/** Options that every request has. */
export interface CallOptions {
  /** Ends the call; it then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** Seconds within which the answer must be complete, instead of those of the client. */
  timeoutSeconds?: number | undefined;
}

/**
 * When a request may be repeated.
 *
 * - `never`: a second request could have a second effect.
 * - `safe`: a second request has the effect of one.
 * - `keyed`: a creation; its Idempotency-Key makes a second request return the first answer.
 */
export type Retry = "never" | "safe" | "keyed";

/** Parameters of a query. Undefined, null and false are omitted. */
export type Params = Readonly<Record<string, string | number | boolean | null | undefined>>;

/** One HTTP request. `path` is percent-encoded. */
export interface Request extends CallOptions {
  method: string;
  path: string;
  params?: Params;
  headers?: Readonly<Record<string, string>>;
  content?: Content | undefined;
  retry?: Retry;
  /** Maximum size of the answer in bytes. */
  limit?: number;
}

/** A complete answer. */
export interface Answer {
  status: number;
  headers: Headers;
  body: Uint8Array;
}

/**
 * How often and how long a request is repeated. Times are in seconds.
 *
 * `longest` is the longest wait that the service may ask for with Retry-After. If it asks for a
 * longer one, the error is thrown at once.
 */
export class RetryPolicy {
  readonly attempts: number;
  readonly first: number;
  readonly longest: number;

  constructor(options: { attempts?: number; first?: number; longest?: number } = {}) {
    this.attempts = options.attempts ?? 4;
    this.first = options.first ?? 0.2;
    this.longest = options.longest ?? 10;
  }

  /** Return the wait after the failure of an attempt (from 1); null: give up. */
  delay(attempt: number, retryAfter: number | null = null): number | null {
    if (attempt >= this.attempts) return null;
    if (retryAfter !== null) return retryAfter <= this.longest ? retryAfter : null;
    const longest = Math.min(this.longest, this.first * 2 ** (attempt - 1));
    return longest * (0.5 + Math.random() / 2);
  }
}

/** Return a request with a JSON object as its body. Members that are undefined are omitted. */
export function jsonRequest(
  method: string,
  path: string,
  body: object,
  more: Omit<Request, "method" | "path" | "content"> = {},
): Request {
  const headers = { ...more.headers, "Content-Type": JSON_TYPE };
  return { ...more, method, path, headers, content: JSON.stringify(body) };
}

/** Return the signal and the time limit of options, and nothing else. */
export function callOf(options: CallOptions): CallOptions {
  return { signal: options.signal, timeoutSeconds: options.timeoutSeconds };
}

/** Return a creation with an Idempotency-Key of its own. */
export function withKey(request: Request): Request {
  if (request.retry !== "keyed" || request.headers?.["Idempotency-Key"] !== undefined) {
    return request;
  }
  return { ...request, headers: { ...request.headers, "Idempotency-Key": randomHex(16) } };
}

/**
 * Return `size` random bytes as hexadecimal text: for names that must differ, not for secrets.
 *
 * Node.js 18 has no global `crypto`.
 */
export function randomHex(size: number): string {
  const bytes = new Uint8Array(size);
  const source = (globalThis as { crypto?: Crypto }).crypto;
  if (source === undefined) bytes.forEach((_, place) => (bytes[place] = Math.random() * 256));
  else source.getRandomValues(bytes);
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the path of a request with its query. */
export function targetOf(request: Request): string {
  const pairs: [string, string][] = [];
  for (const [name, value] of Object.entries(request.params ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    pairs.push([name, String(value)]);
  }
  if (pairs.length === 0) return request.path;
  const mark = request.path.includes("?") ? "&" : "?";
  return `${request.path}${mark}${new URLSearchParams(pairs).toString()}`;
}

/** Return a text as one segment of a path. Throws `InvalidRequest`. */
export function segment(text: string, what = "name"): string {
  if (typeof text !== "string" || text === "" || text === "." || text === "..") {
    throw new InvalidRequest(`'${text}' is not a ${what}`);
  }
  return encoded(text);
}

/** Return the path of a file as segments of a URL, without a leading slash. */
export function filePath(path: string): string {
  const words = path.split("/");
  if (words.some((word) => word === "." || word === "..") || path.includes("\0")) {
    throw new InvalidRequest(`'${path}' contains '.', '..' or NUL`);
  }
  return words.map(encoded).join("/").replace(/^\/+/, "");
}

function encoded(text: string): string {
  try {
    return encodeURIComponent(text);
  } catch {
    throw new InvalidRequest("the name has a half of a surrogate pair");
  }
}

/** Return the media type of an answer in lower case, without parameters. */
export function mediaType(headers: Headers): string {
  return (headers.get("content-type") ?? "").split(";", 1)[0]?.trim().toLowerCase() ?? "";
}

/** Throw the error of an answer whose status is not an expected one. */
export function checkStatus(answer: Answer, expected: readonly number[]): void {
  if (expected.includes(answer.status)) return;
  if (answer.status >= 300 && answer.status < 400) {
    const place = (answer.headers.get("location") ?? "").slice(0, 200);
    throw new ProtocolError(
      `the service redirects to '${place}'; redirects are not followed. Use its final URL`,
    );
  }
  if (answer.status < 400) {
    throw new ProtocolError(`the answer has the unexpected status ${answer.status}`);
  }
  throw errorOf(answer);
}

/** Return the error of an answer with a status of 4xx or 5xx. */
export function errorOf(answer: Answer): ServiceError {
  const kind = classOf(answer.status);
  const error = new kind(errorText(answer), answer.status, answer.headers.get("x-request-id"));
  if (error instanceof QuotaExceeded || error instanceof Unavailable) {
    error.retryAfter = retryAfter(answer.headers);
  }
  return error;
}

/** Return the seconds of Retry-After, which may be a date; null: missing or not valid. */
export function retryAfter(headers: Headers): number | null {
  const text = (headers.get("retry-after") ?? "").trim();
  if (/^\d{1,8}$/.test(text)) return Number(text);
  const moment = /GMT$/.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(moment) ? null : Math.max(0, (moment - Date.now()) / 1000);
}

/** Return the JSON value of an answer. Throws `ProtocolError`. */
export function jsonOf(answer: Answer): unknown {
  const kind = mediaType(answer.headers);
  if (kind !== JSON_TYPE) {
    const found = kind.slice(0, 80);
    throw new ProtocolError(`the answer is '${found}' instead of JSON; is this the service's URL?`);
  }
  return parsed(strict(answer.body, "the answer"), "the answer");
}

/** Return an answer as a value. Throws `ProtocolError`. */
export function valueOf<T>(answer: Answer, read: Reader<T>): T {
  return read(jsonOf(answer), read.kind);
}

function errorText(answer: Answer): string {
  let text = "";
  if (mediaType(answer.headers) === JSON_TYPE) {
    try {
      const body: unknown = JSON.parse(new TextDecoder().decode(answer.body));
      const member = (body as { error?: unknown } | null)?.error;
      if (typeof member === "string") text = member;
    } catch {
      text = "";
    }
  }
  if (text === "") text = `the service answered with the status ${answer.status}`;
  return text.slice(0, MAX_ERROR_TEXT).replace(/[^\P{C}\n]/gu, "?");
}
