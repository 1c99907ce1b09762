// The compiled module, once per program.

import { bytes } from "./bytes.js";

let compiling: Promise<WebAssembly.Module> | undefined;

export const compiled = (): Promise<WebAssembly.Module> => (compiling ??= WebAssembly.compile(bytes()));
