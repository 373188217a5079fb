/** Background commands: they run on after the connection ends, and are found again by their id. */

import { pause } from "./deadline.js";
import { ConnectionLost, Unavailable } from "./errors.js";
import { CommandEvents, decodeBase64, type CommandEvent } from "./events.js";
import { commandInfo, encodedOutput, type CommandInfo, type StoredOutput } from "./models.js";
import {
  callOf,
  jsonRequest,
  segment,
  valueOf,
  type CallOptions,
  type Content,
  type Request,
} from "./protocol.js";
import { CommandStream } from "./streams.js";
import type { Transport } from "./transport.js";

/** A background command of a box. `id` finds it again. */
export class Command {
  readonly #transport: Transport;
  readonly #path: string;

  /** Creating the object sends nothing. */
  constructor(
    transport: Transport,
    readonly ref: string,
    readonly id: string,
  ) {
    this.#transport = transport;
    this.#path = `/v1/boxes/${segment(ref, "box")}/commands/${segment(id, "command")}`;
  }

  /** Return the state of the command. */
  async info(options: CallOptions = {}): Promise<CommandInfo> {
    return valueOf(await this.#send("GET", "", { ...callOf(options), retry: "safe" }), commandInfo);
  }

  /**
   * Return the output from `offset` bytes on, and `exit` once the command has ended.
   *
   * After the connection broke, the stream connects again and continues where it was.
   */
  output(options: { offset?: number; signal?: AbortSignal } = {}): CommandStream {
    const offset = options.offset ?? 0;
    return new CommandStream((signal) => this.#follow(offset, signal), options.signal);
  }

  /** Return the output that is stored now, from `offset` on, without waiting for more. */
  async read(options: CallOptions & { offset?: number; limit?: number } = {}): Promise<StoredOutput> {
    const params = { offset: options.offset, follow: "false", limit: options.limit };
    const request = { ...callOf(options), params, retry: "safe" } as const;
    const stored = valueOf(await this.#send("GET", "/output", request), encodedOutput);
    const { stdout, stderr } = stored;
    return { ...stored, stdout: decodeBase64(stdout), stderr: decodeBase64(stderr) };
  }

  /** Wait for the end of the command and return its exit code. */
  async wait(options: { signal?: AbortSignal } = {}): Promise<number> {
    const { output_bytes: offset } = await this.info(options);
    const stream = this.output({ ...options, offset });
    for await (const event of stream) {
      if (event.type === "exit") return event.code;
    }
    throw new ConnectionLost(`command ${this.id} has no exit code`);
  }

  /** Write to the standard input of the command; with `close`, end the input after that. */
  async write(content: Content, options: CallOptions & { close?: boolean } = {}): Promise<void> {
    const params = { close: options.close };
    await this.#send("POST", "/stdin", { ...callOf(options), params, content });
  }

  /** End the standard input of the command. */
  async closeInput(options: CallOptions = {}): Promise<void> {
    await this.write("", { ...options, close: true });
  }

  /** Send a signal to the processes of the command. */
  async signal(name = "TERM", options: CallOptions = {}): Promise<void> {
    const path = `${this.#path}/signal`;
    await this.#transport.send(jsonRequest("POST", path, { signal: name }, callOf(options)));
  }

  /** End the command if it runs, and remove it and its output. */
  async remove(options: CallOptions = {}): Promise<void> {
    await this.#send("DELETE", "", { ...callOf(options), retry: "safe" });
  }

  #send(method: string, path: string, more: Partial<Request>): ReturnType<Transport["send"]> {
    return this.#transport.send({ ...more, method, path: this.#path + path });
  }

  async *#follow(
    offset: number,
    signal: AbortSignal,
  ): AsyncGenerator<CommandEvent, void, undefined> {
    const decoder = new CommandEvents();
    const params = { offset };
    let lastId = "";
    let failures = 0;
    for (;;) {
      const headers: Record<string, string> = lastId === "" ? {} : { "Last-Event-ID": lastId };
      const path = `${this.#path}/output`;
      const request: Request = { method: "GET", path, params, headers, signal };
      try {
        for await (const event of this.#transport.events(request, "exit")) {
          const value = decoder.take(event);
          lastId = event.id ?? lastId;
          failures = 0;
          if (value !== null) yield value;
        }
        if (decoder.exit !== null) return;
        throw new ConnectionLost(`the output of command ${this.id} ended before the command`);
      } catch (error) {
        if (!(error instanceof ConnectionLost || error instanceof Unavailable)) throw error;
        if (signal.aborted) throw error;
        failures += 1;
        const asked = error instanceof Unavailable ? error.retryAfter : null;
        const wait = this.#transport.policy.delay(failures, asked);
        if (wait === null) throw error;
        await pause(wait, signal);
      }
    }
  }
}
