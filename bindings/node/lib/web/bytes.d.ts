/** The module's bytes, and the package's version. `scripts/web.mjs` writes this file when it has built the module. */
export declare const bytes: () => Uint8Array<ArrayBuffer>;
export declare const version: string;
