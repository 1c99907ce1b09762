// The platforms with a package of native code, `@workglow-limit/NAME`. The loader, the packages and the release use this list.

interface Platform {
  readonly name: string;
  // As in package.json.
  readonly os: NodeJS.Platform;
  readonly cpu: string;
  readonly libc: "glibc" | "musl";
}

const platforms: readonly Platform[] = [
  { name: "linux-x64-gnu", os: "linux", cpu: "x64", libc: "glibc" },
  { name: "linux-x64-musl", os: "linux", cpu: "x64", libc: "musl" },
  { name: "linux-arm64-gnu", os: "linux", cpu: "arm64", libc: "glibc" },
  { name: "linux-arm64-musl", os: "linux", cpu: "arm64", libc: "musl" },
];

export = platforms;
