/**
 * Client library of the Box Service, for browsers and Node.js.
 *
 * ```ts
 * import { Client } from "boxd-client";
 *
 * const box = new Client().box("dev");
 * console.log((await box.exec("uname -a")).stdout);
 * ```
 */

export { Box, type ExecOptions, type PortAnswer, type StartOptions } from "./box.js";
export { Client, type ClientOptions } from "./client.js";
export type {
  Agents,
  Asks,
  Boxes,
  CreateOptions,
  Keys,
  ListOptions,
  ProfileOptions,
  Profiles,
  SecretOptions,
  Secrets,
  Shares,
  Workspaces,
} from "./collections.js";
export { Command } from "./commands.js";
export {
  AnswerTooLarge,
  BoxError,
  CommandFailed,
  ConfigurationError,
  Conflict,
  ConnectionLost,
  Forbidden,
  InvalidRequest,
  NotFound,
  PreconditionFailed,
  ProtocolError,
  QuotaExceeded,
  RequestTimeout,
  ServiceError,
  ServiceFailed,
  StorageFull,
  TooLarge,
  Unauthorized,
  Unavailable,
} from "./errors.js";
export {
  Result,
  type BatchError,
  type BatchEvent,
  type BatchExit,
  type BatchOutput,
  type CommandEvent,
  type Dropped,
  type Exit,
  type Output,
  type StreamName,
} from "./events.js";
export { BoxFiles, Drive, Files, type FileStat, type Span } from "./files.js";
export type {
  Agent,
  Ask,
  AskResult,
  BoxInfo,
  Change,
  CommandInfo,
  Entry,
  Identity,
  Key,
  NewShare,
  NextAct,
  Port,
  Profile,
  Removal,
  SecretName,
  Share,
  Snapshot,
  Stat,
  StoredOutput,
  Usage,
  Workspace,
} from "./models.js";
export { RetryPolicy, VERSION, type CallOptions, type Content } from "./protocol.js";
export { CommandStream, EventStream } from "./streams.js";
export { Terminal, type WebSocketClass, type WebSocketLike } from "./terminal.js";
export type { Fetch } from "./transport.js";
