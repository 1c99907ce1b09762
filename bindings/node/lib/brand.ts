// Recognizes objects of this package across copies of its code. Jest and Vitest run tests in realms of their own and reset module
// registries, so that the same code may be loaded twice, with separate classes.

/**
 * Makes `instanceof` with these classes check a mark instead of the prototype. The mark's value is the owner: the loaded addon for
 * objects with a native part.
 */
export function brand(classes: Record<string, abstract new (...args: never[]) => object>, owner: unknown = true): void {
  for (const [name, of] of Object.entries(classes)) {
    const mark = Symbol.for(`workglow-limit.${name}`);
    Object.defineProperty(of.prototype, mark, { value: owner });
    Object.defineProperty(of, Symbol.hasInstance, {
      value(this: unknown, given: unknown): boolean {
        // A derived class has no mark of its own.
        if (this !== of) return Function.prototype[Symbol.hasInstance].call(this, given);
        return typeof given === "object" && given !== null && (given as Record<symbol, unknown>)[mark] === owner;
      },
    });
  }
}
