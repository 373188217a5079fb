/** Bodies of requests: what `fetch` accepts for each kind of content. */

import { InvalidRequest } from "./errors.js";
import type { Content } from "./protocol.js";

/** Slowest upload that is not a timeout, in bytes per second. */
const SLOWEST = 64 * 1024;

/** The body of one request. `size` is -1 if only the end of the stream tells it. */
export interface RequestBody {
  body: BodyInit;
  size: number;
}

/** What a stream tells its request, and how the request ends the stream. */
export interface Watcher {
  /** Fires when the request has ended. */
  signal: AbortSignal;
  /** A piece was read. */
  progress(): void;
  /** The source of the content failed. */
  fail(error: unknown): void;
}

/** Return whether content can be sent a second time. */
export function repeatable(content: Content | undefined): boolean {
  return content === undefined || typeof content === "string" || fixed(content);
}

/** Return the body of a request, with `head` before the content. */
export function bodyOf(content: Content, head: string, watcher: Watcher): RequestBody {
  if (typeof content === "string") {
    const bytes = new TextEncoder().encode(head + content);
    return { body: bytes, size: bytes.length };
  }
  if (fixed(content)) {
    if (head === "" && content instanceof Blob) return { body: content, size: content.size };
    const blob = new Blob(head === "" ? [content as BlobPart] : [head, content as BlobPart]);
    return { body: blob, size: blob.size };
  }
  return { body: streamOf(content, head, watcher), size: -1 };
}

/** Return the seconds that a body of this size may take in addition. */
export function uploadSeconds(size: number): number {
  return Math.max(size, 0) / SLOWEST;
}

function fixed(content: Content): content is Uint8Array | ArrayBuffer | Blob {
  return (
    content instanceof Uint8Array || content instanceof ArrayBuffer || content instanceof Blob
  );
}

async function* pieces(
  content: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>,
): AsyncGenerator<Uint8Array | string> {
  if (Symbol.asyncIterator in content) {
    yield* content as AsyncIterable<Uint8Array | string>;
    return;
  }
  // Some browsers cannot iterate over a ReadableStream.
  const reader = content.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function streamOf(
  content: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>,
  head: string,
  watcher: Watcher,
): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  const iterator = pieces(content);
  const leave = (): void => {
    iterator.return(undefined).catch(() => undefined);
  };
  watcher.signal.addEventListener("abort", leave, { once: true });
  let first = head;
  return new ReadableStream<Uint8Array>({
    async pull(controller): Promise<void> {
      if (watcher.signal.aborted) {
        // Node.js reads on after the end of a request, without a pause, if the content has no end.
        controller.error(watcher.signal.reason);
        return;
      }
      watcher.progress();
      if (first !== "") {
        controller.enqueue(encoder.encode(first));
        first = "";
        return;
      }
      try {
        for (;;) {
          const { done, value } = await iterator.next();
          watcher.progress();
          if (done) {
            controller.close();
            return;
          }
          const bytes: unknown = typeof value === "string" ? encoder.encode(value) : value;
          if (!(bytes instanceof Uint8Array)) {
            throw new InvalidRequest("a piece of the content is neither bytes nor text");
          }
          if (bytes.length > 0) {
            controller.enqueue(bytes);
            return;
          }
        }
      } catch (error) {
        watcher.fail(error);
        throw error;
      }
    },
    async cancel(): Promise<void> {
      await iterator.return(undefined);
    },
  });
}
