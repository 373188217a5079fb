/** Sends requests and returns checked answers: retries, limits, and the errors of the network. */

import { bodyOf, repeatable, uploadSeconds } from "./bodies.js";
import { inNode, type Settings } from "./config.js";
import { Deadline, pause } from "./deadline.js";
import {
  AnswerTooLarge,
  BoxError,
  Conflict,
  ConnectionLost,
  NotFound,
  ProtocolError,
  QuotaExceeded,
  Unavailable,
} from "./errors.js";
import { EventParser, joined, type ServerEvent } from "./events.js";
import {
  checkStatus,
  EVENT_TYPE,
  MAX_ERROR,
  MAX_JSON,
  mediaType,
  targetOf,
  withKey,
  type Answer,
  type Request,
  type RetryPolicy,
} from "./protocol.js";

/** Seconds that the end of a stream may take after its last event. */
const LINGER_S = 1;
/** Seconds of silence after which a stream fails. The service sends a comment every 15 s. */
const STALL_S = 60;
const SUCCESS = [200, 201, 202, 204];

/** A function with the form of `fetch`. */
export type Fetch = (url: string, options: RequestInit) => Promise<Response>;

/** The way to one service. `timeoutSeconds` limits a whole answer by default. */
export class Transport {
  constructor(
    readonly settings: Settings,
    readonly timeoutSeconds: number,
    readonly policy: RetryPolicy,
    private readonly fetch: Fetch,
  ) {}

  /**
   * Return the answer of a request; repeat the request if its rules allow that.
   *
   * Throws `ServiceError`, `ConnectionLost`, `ProtocolError` or `AnswerTooLarge`.
   */
  async send(first: Request): Promise<Answer> {
    const request = withKey(first);
    for (let attempt = 1; ; attempt++) {
      let wait: number | null;
      try {
        const answer = await this.#once(request);
        checkStatus(answer, SUCCESS);
        return answer;
      } catch (error) {
        if (attempt > 1 && request.method === "DELETE" && error instanceof NotFound) {
          // An earlier attempt removed it.
          return { status: 204, headers: new Headers(), body: new Uint8Array() };
        }
        wait = this.#wait(request, error, attempt);
        if (wait === null) throw error;
      }
      await pause(wait, request.signal);
    }
  }

  /** Send a request once and return its answer while the body arrives. Close the body. */
  async open(request: Request, expected: readonly number[], head = ""): Promise<Body> {
    const body = await this.#begin(request, head);
    try {
      if (!expected.includes(body.status)) {
        checkStatus(body.answer(await body.head(MAX_ERROR)), expected);
      }
      body.checkFraming();
      body.pauseTime();
      return body;
    } catch (error) {
      body.close();
      throw error;
    }
  }

  /**
   * Send a request once and yield the events of its answer, until the stream ends.
   *
   * `last` is the name of the last event. `budget`: seconds that all waits may take together.
   * `head` precedes the content of the request.
   */
  async *events(
    request: Request,
    last: string,
    budget = Infinity,
    head = "",
  ): AsyncGenerator<ServerEvent, void, undefined> {
    const body = await this.open(request, [200, 201], head);
    let ended = false;
    try {
      if (mediaType(body.headers) !== EVENT_TYPE) {
        const kind = mediaType(body.headers).slice(0, 80);
        throw new ProtocolError(`the answer is '${kind}', no events`);
      }
      const parser = new EventParser();
      for await (const chunk of body.chunks(budget)) {
        for (const event of parser.feed(chunk)) {
          yield event;
          if (event.name === last) {
            ended = true;
            body.expire(LINGER_S);
          }
        }
      }
    } catch (error) {
      if (!(ended && error instanceof ConnectionLost)) throw error;
    } finally {
      body.close();
    }
  }

  async #once(request: Request): Promise<Answer> {
    const body = await this.#begin(request, "");
    try {
      if (body.status >= 300) return body.answer(await body.head(MAX_ERROR));
      if (request.method !== "HEAD") body.checkFraming();
      return body.answer(await body.collect(request.limit ?? MAX_JSON));
    } finally {
      body.close();
    }
  }

  async #begin(request: Request, head: string): Promise<Body> {
    const name = `${request.method} ${request.path}`;
    const deadline = new Deadline(name, request.signal);
    const limit = request.timeoutSeconds ?? this.timeoutSeconds;
    try {
      deadline.check();
      const options = this.#options(request, deadline, limit, head);
      const response = await this.fetch(this.settings.url + targetOf(request), options);
      if (response.type === "opaqueredirect") {
        throw new ProtocolError("the service redirects; redirects are not followed");
      }
      return new Body(response, name, deadline);
    } catch (error) {
      const reason = failure(name, error, deadline);
      deadline.end(reason);
      deadline.close();
      throw reason;
    }
  }

  #options(request: Request, deadline: Deadline, limit: number, head: string): RequestInit {
    const headers = new Headers(request.headers as Record<string, string>);
    headers.set("Authorization", `Bearer ${this.settings.key}`);
    if (inNode()) headers.set("Accept-Encoding", "identity");
    const options: RequestInit & { duplex?: "half" } = {
      method: request.method,
      headers,
      signal: deadline.signal,
      redirect: "manual",
      credentials: "omit",
      cache: "no-store",
      referrerPolicy: "no-referrer",
    };
    let seconds = limit;
    if (request.content !== undefined) {
      const { body, size } = bodyOf(request.content, head, {
        signal: deadline.signal,
        progress: () => deadline.progress(limit),
        fail: (error) => deadline.end(error),
      });
      options.body = body;
      if (size < 0) options.duplex = "half";
      seconds += uploadSeconds(size);
    }
    deadline.start(seconds);
    return options;
  }

  /** Return the seconds before the next attempt, or null. */
  #wait(request: Request, error: unknown, attempt: number): number | null {
    const retry = request.retry ?? "never";
    if (retry === "never" || !(error instanceof BoxError) || !repeatable(request.content)) {
      return null;
    }
    if (error instanceof QuotaExceeded || error instanceof Unavailable) {
      return this.policy.delay(attempt, error.retryAfter);
    }
    // A conflict after a lost answer: the first request may still be running.
    const running = retry === "keyed" && attempt > 1 && error instanceof Conflict;
    if (error instanceof ConnectionLost || running) return this.policy.delay(attempt);
    return null;
  }
}

/** An answer whose body is still arriving. */
export class Body {
  readonly status: number;
  readonly headers: Headers;
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | null;
  #budget = Infinity;

  constructor(
    response: Response,
    private readonly name: string,
    private readonly deadline: Deadline,
  ) {
    this.status = response.status;
    this.headers = response.headers;
    this.#reader = response.body?.getReader() ?? null;
  }

  /** Return the answer with a body. */
  answer(body: Uint8Array): Answer {
    return { status: this.status, headers: this.headers, body };
  }

  /**
   * Throw `ProtocolError` unless the end of the body can be told from a broken connection.
   *
   * A browser decodes a compressed body and hides some headers, and checks the end itself.
   */
  checkFraming(): void {
    if (!inNode()) return;
    const coding = (this.headers.get("content-encoding") ?? "identity").trim().toLowerCase();
    if (coding !== "identity") {
      throw new ProtocolError("the answer is compressed, which the request does not allow");
    }
    if (this.status === 204 || this.status === 304) return;
    if (!this.headers.has("content-length") && !this.headers.has("transfer-encoding")) {
      throw new ProtocolError("the answer has no length; is this the URL of the service?");
    }
  }

  /** Return the announced size of the body in bytes; null: unknown. */
  get length(): number | null {
    const text = this.headers.get("content-length");
    if (text === null || this.headers.has("content-encoding")) return null;
    if (!/^\d{1,15}$/.test(text)) {
      throw new ProtocolError("the answer has a length that is no number");
    }
    return Number(text);
  }

  /** Stop the time limit of the answer: from now on, only waits for the body are limited. */
  pauseTime(): void {
    this.deadline.begin();
  }

  /** Limit the rest of the body to a number of seconds. */
  expire(seconds: number): void {
    this.#budget = seconds;
  }

  /**
   * Yield the body. `budget`: seconds that all waits for it may take together.
   *
   * Throws `ConnectionLost` if the body is not complete.
   */
  async *chunks(budget = Infinity): AsyncGenerator<Uint8Array, void, undefined> {
    this.#budget = budget;
    for (;;) {
      const start = performance.now();
      this.deadline.start(Math.min(STALL_S, this.#budget));
      const chunk = await this.#next();
      this.deadline.stop();
      if (chunk === null) return;
      this.#budget = Math.max(this.#budget - (performance.now() - start) / 1000, 0);
      yield chunk;
    }
  }

  /** Return the whole body. Throws `AnswerTooLarge` if it exceeds `limit` bytes. */
  async collect(limit: number): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    let size = 0;
    for (let chunk = await this.#next(); chunk !== null; chunk = await this.#next()) {
      pieces.push(chunk);
      size += chunk.length;
      if (size > limit) throw new AnswerTooLarge(`${this.name}: the answer exceeds ${limit} bytes`);
    }
    return joined(pieces, size);
  }

  /** Return the begin of the body of an error, at most `limit` bytes. */
  async head(limit: number): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    let size = 0;
    while (size < limit) {
      const chunk = await this.#next();
      if (chunk === null) break;
      pieces.push(chunk);
      size += chunk.length;
    }
    return joined(pieces, size).slice(0, limit);
  }

  /** Close the connection, unless the body is complete. */
  close(): void {
    this.deadline.end(new ConnectionLost(`${this.name}: the stream was closed`));
    this.deadline.close();
  }

  async #next(): Promise<Uint8Array | null> {
    if (this.#reader === null) return null;
    try {
      const { done, value } = await this.#reader.read();
      return done ? null : value;
    } catch (error) {
      throw failure(this.name, error, this.deadline);
    }
  }
}

/** Return the error of this library for an error of `fetch`. */
function failure(name: string, error: unknown, deadline: Deadline): unknown {
  if (error instanceof BoxError) return error;
  const { signal } = deadline;
  if (signal.aborted) return signal.reason;
  if (!(error instanceof TypeError)) return error;
  const cause = error.cause instanceof Error ? error.cause : error;
  return new ConnectionLost(`${name}: the connection broke: ${cause.message}`, { cause: error });
}
