// Instances of the module that no engine has any more.
//
// *They are used again.* Each takes some gigabytes of its program's addresses until it is collected, however little of them it uses. A
// browser has room for a hundred or so, and may collect too late: then a program that leads often, or opens many stores, cannot begin.

/** How many of them stay, and how many bytes one may have: larger ones are collected. */
const IDLE = 4;
const BYTES = 8e6;

const idle = new WeakMap<WebAssembly.Module, WebAssembly.Instance[]>();

/** Returns an instance, and how to leave it to others. */
export async function instanceOf(module: WebAssembly.Module): Promise<[instance: WebAssembly.Instance, leave: () => void]> {
  const others = idle.get(module) ?? [];
  idle.set(module, others);
  const instance = others.pop() ?? (await WebAssembly.instantiate(module, {}));
  const leave = () => {
    const { buffer } = instance.exports.memory as WebAssembly.Memory;
    if (others.length < IDLE && buffer.byteLength <= BYTES) others.push(instance);
  };
  return [instance, leave];
}
