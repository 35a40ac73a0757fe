// A Kafka for one test, which sets faults over HTTP. docs/testing/faults.md has the requests.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

const DEADLINE_MS = 60_000;

export class Lab {
  /** Starts brokers; `close` ends them. The command is in the variable BARNABAS, for example "python -m barnabas". */
  static async start(brokers = 1, ...settings) {
    const [program, ...start] = (process.env.BARNABAS ?? "barnabas").split(" ");
    const set = settings.flatMap((each) => ["--set", each]);
    const options = ["up", "--brokers", String(brokers), "--port", "0", "--lab", "127.0.0.1:0", ...set];
    const child = spawn(program, [...start, ...options], { stdio: ["ignore", "pipe", "inherit"] });
    const ended = new Promise((resolve, reject) => {
      child.once("error", reject);
      child.once("exit", (code) => resolve(code));
    });
    const lines = createInterface({ input: child.stdout });
    const line = await Promise.race([
      once(lines, "line").then(([text]) => text),
      ended.then((code) => Promise.reject(new Error(`the lab did not start: exit code ${code}`))),
    ]);
    const [, bootstrap, url] = /^ready bootstrap=(\S+) lab=(\S+)$/.exec(line);
    return new Lab(child, ended, bootstrap.split(","), url);
  }

  constructor(child, ended, brokers, url) {
    Object.assign(this, { child, ended, brokers, url });
  }

  /** Installs a fault and returns its number. */
  async fault(fault) {
    return (await this.call("POST", "/v1/faults", fault)).id;
  }

  /** Returns the fault once it has met that many requests. */
  async wait(id, hits = 1) {
    return this.call("GET", `/v1/faults/${id}?hits=${hits}&timeout=30`);
  }

  /** Lets the requests go on that the fault holds. */
  async release(id) {
    return this.call("POST", `/v1/faults/${id}/release`);
  }

  /** Does something to a broker: kill, stop, pause, resume, restart. */
  async broker(id, action) {
    return this.call("POST", `/v1/brokers/${id}/${action}`);
  }

  /** Fails if a fault has met no request. */
  async verify() {
    await this.call("POST", "/v1/faults/verify");
  }

  async close() {
    this.child.kill("SIGTERM");
    const timer = setTimeout(() => this.child.kill("SIGKILL"), DEADLINE_MS);
    const code = await this.ended;
    clearTimeout(timer);
    if (code !== 0) throw new Error(`the lab ended with exit code ${code}`);
  }

  async call(method, path, body) {
    const answer = await fetch(this.url + path, {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(DEADLINE_MS),
    });
    const told = await answer.json();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${told.error}`);
    return told;
  }
}
