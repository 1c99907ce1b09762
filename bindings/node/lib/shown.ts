// What `console.log` prints of an object: what it stands for, instead of what it is made of.

import { type InspectOptions, inspect } from "node:util";

/** Lets a class's objects be printed as their class's name and these properties. */
export function shown<T extends object>(of: abstract new (...args: never[]) => T, properties: (object: T) => object): void {
  Object.defineProperty(of.prototype, inspect.custom, {
    configurable: true,
    value(this: T, depth: number, options: InspectOptions): string {
      const name = this.constructor.name;
      return depth < 0 ? `[${name}]` : `${name} ${inspect(properties(this), { ...options, depth })}`;
    },
  });
}
