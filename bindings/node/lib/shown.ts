// Prints objects in `console.log` by their meaning instead of their internals.

import { type InspectOptions, inspect } from "node:util";

/** Prints objects of a class as the class's name and these properties. */
export function shown<T extends object>(of: abstract new (...args: never[]) => T, properties: (object: T) => object): void {
  Object.defineProperty(of.prototype, inspect.custom, {
    configurable: true,
    value(this: T, depth: number, options: InspectOptions): string {
      const name = this.constructor.name;
      return depth < 0 ? `[${name}]` : `${name} ${inspect(properties(this), { ...options, depth })}`;
    },
  });
}
