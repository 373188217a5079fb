/** The output of commands, as streams of events. */

import { AnswerTooLarge, ConnectionLost } from "./errors.js";
import {
  BatchEvents,
  CommandEvents,
  joined,
  Result,
  WatchEvents,
  type BatchEvent,
  type CommandEvent,
} from "./events.js";
import type { Change } from "./models.js";
import type { Request } from "./protocol.js";
import type { Transport } from "./transport.js";

/** Default limit on the output that is collected in memory, in bytes. */
export const MAX_OUTPUT = 64 * 1024 * 1024;

/** Begins a stream. The signal ends it. */
export type Source<T> = (signal: AbortSignal) => AsyncGenerator<T, void, undefined>;

/**
 * A stream of events. The request begins with the first event.
 *
 * A stream can be read once. `break` and `close` end it and close the connection.
 */
export class EventStream<T> implements AsyncIterableIterator<T> {
  readonly #controller = new AbortController();
  readonly #events: AsyncGenerator<T, void, undefined>;
  readonly #forget: () => void;
  #closed = false;

  constructor(source: Source<T>, signal?: AbortSignal) {
    const leave = (): void => this.#controller.abort(signal?.reason);
    this.#forget = () => signal?.removeEventListener("abort", leave);
    if (signal?.aborted) leave();
    else signal?.addEventListener("abort", leave);
    this.#events = source(this.#controller.signal);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Return the next event. */
  async next(): Promise<IteratorResult<T, undefined>> {
    try {
      const step = await this.#events.next();
      if (step.done !== true) return this.observe(step.value);
    } catch (error) {
      this.#forget();
      if (!this.#closed) throw error;
    }
    this.#forget();
    return { done: true, value: undefined };
  }

  /** End the stream, as `break` does. */
  async return(): Promise<IteratorResult<T, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /** Stop reading and close the connection. A `next` that waits ends without an event. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#controller.abort(new ConnectionLost("the stream was closed"));
    this.#forget();
    await this.#events.return(undefined).catch(() => undefined);
  }

  protected observe(value: T): IteratorResult<T, undefined> {
    return { done: false, value };
  }
}

/**
 * The events of one command: `output`, `dropped` and, last, `exit`.
 *
 * The stream throws `ConnectionLost` if it breaks before `exit`: the exit code is then unknown. A
 * command of `Box.stream` ends with its stream.
 */
export class CommandStream extends EventStream<CommandEvent> {
  /** The exit code; null: the command has not ended. */
  exitCode: number | null = null;

  /**
   * Return the exit code and the whole output.
   *
   * Throws `AnswerTooLarge` if the output exceeds `limit` bytes.
   */
  async collect(limit = MAX_OUTPUT): Promise<Result> {
    const pieces = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
    const sizes = { stdout: 0, stderr: 0 };
    for await (const event of this) {
      if (event.type !== "output") continue;
      pieces[event.stream].push(event.data);
      sizes[event.stream] += event.data.length;
      if (sizes.stdout + sizes.stderr > limit) {
        throw new AnswerTooLarge(
          `the output of the command exceeds ${limit} bytes; read it as a stream`,
        );
      }
    }
    if (this.exitCode === null) {
      throw new ConnectionLost("the stream was closed before the command ended");
    }
    const stdout = joined(pieces.stdout, sizes.stdout);
    return new Result(this.exitCode, stdout, joined(pieces.stderr, sizes.stderr));
  }

  protected override observe(value: CommandEvent): IteratorResult<CommandEvent, undefined> {
    if (value.type === "exit") this.exitCode = value.code;
    return super.observe(value);
  }
}

/** Yield the events of one command. Throws `ConnectionLost` if there is no exit code. */
export async function* commandEvents(
  transport: Transport,
  request: Request,
  budget: number,
  head: string,
): AsyncGenerator<CommandEvent, void, undefined> {
  const decoder = new CommandEvents();
  for await (const event of transport.events(request, "exit", budget, head)) {
    const value = decoder.take(event);
    if (value !== null) yield value;
  }
  if (decoder.exit === null) {
    throw new ConnectionLost("the service ended the command, so its exit code is unknown");
  }
}

/** Yield the events of a command in several boxes. */
export async function* batchEvents(
  transport: Transport,
  request: Request,
  budget: number,
): AsyncGenerator<BatchEvent, void, undefined> {
  const decoder = new BatchEvents();
  for await (const event of transport.events(request, "done", budget)) {
    const value = decoder.take(event);
    if (value !== null) yield value;
  }
  if (!decoder.done) {
    throw new ConnectionLost("the connection broke before all boxes had ended the command");
  }
}

/** Yield the changes below a directory. Throws `ConnectionLost` if the watch does not end. */
export async function* watchEvents(
  transport: Transport,
  request: Request,
): AsyncGenerator<Change, void, undefined> {
  const decoder = new WatchEvents();
  for await (const event of transport.events(request, "end")) {
    const value = decoder.take(event);
    if (value !== null) yield value;
  }
  if (!decoder.ended) {
    throw new ConnectionLost("the connection of the watch broke; changes may be missing");
  }
}
