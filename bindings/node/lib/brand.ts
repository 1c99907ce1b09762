// What an object of this package is, whoever loaded the code that made it. Tests in Jest and Vitest run in realms of their
// own, and module registries are reset: the same code may be there twice, with classes that know nothing of each other.

/**
 * Makes `instanceof` with these classes go by a mark instead of by the realm. An object is one of theirs if it has the same
 * owner: the loaded addon for what holds something of its own.
 */
export function brand(classes: Record<string, Function>, owner: unknown = true): void {
  for (const [name, of] of Object.entries(classes)) {
    const mark = Symbol.for(`workglow-limit.${name}`);
    Object.defineProperty(of.prototype, mark, { value: owner });
    Object.defineProperty(of, Symbol.hasInstance, {
      value(this: unknown, given: unknown): boolean {
        // A subclass that somebody derived has no mark of its own.
        if (this !== of) return Function.prototype[Symbol.hasInstance].call(this, given);
        return typeof given === "object" && given !== null && (given as Record<symbol, unknown>)[mark] === owner;
      },
    });
  }
}
