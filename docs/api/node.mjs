// Writes the reference of the Node package as data: docs/api/node.mjs FILE. Fails where a public name has no comment.

import { writeFileSync } from "node:fs";
import { Application, ReflectionKind, TSConfigReader, TypeDocReader } from "typedoc";

const here = new URL(".", import.meta.url).pathname;
const app = await Application.bootstrap({ options: `${here}typedoc.json`, logLevel: "Warn" }, [new TypeDocReader(), new TSConfigReader()]);
const project = await app.convert();
if (project === undefined) process.exit(1);
app.validate(project);
if (app.logger.hasErrors() || app.logger.hasWarnings()) process.exit(1);

const MEMBERS = ReflectionKind.Property | ReflectionKind.Method | ReflectionKind.Accessor | ReflectionKind.Constructor;

/** Returns a comment as markdown. */
function text(parts = []) {
  return parts.map((part) => (part.kind === "inline-tag" ? `\`${part.text || part.target?.name}\`` : part.text)).join("");
}

function comment(reflection) {
  const found = reflection?.comment;
  if (!found) return "";
  const tags = found.blockTags.filter(({ tag }) => tag !== "@param" && tag !== "@typeParam");
  const params = (reflection.parameters ?? [])
    .filter(({ comment }) => comment)
    .map((parameter) => `* \`${parameter.name}\`: ${text(parameter.comment.summary)}`);
  const named = ({ tag, content }) =>
    tag === "@returns" ? `Returns ${text(content)}` : tag === "@example" ? text(content) : `${tag.slice(1)}: ${text(content)}`;
  return [text(found.summary), params.join("\n"), ...tags.map(named)].filter(Boolean).join("\n\n");
}

const types = (of) =>
  of.typeParameters?.length
    ? `<${of.typeParameters.map((one) => one.name + (one.type ? ` extends ${one.type}` : "") + (one.default ? ` = ${one.default}` : "")).join(", ")}>`
    : "";

function parameter(of) {
  const optional = of.flags.isOptional || of.defaultValue !== undefined;
  return `${of.flags.isRest ? "..." : ""}${of.name === "__namedParameters" ? "options" : of.name}${optional ? "?" : ""}: ${of.type}`;
}

/** Returns a call on one line, or with a line for each parameter if it is long. */
function call(start, signature, end) {
  const all = (signature.parameters ?? []).map(parameter);
  const line = `${start}${types(signature)}(${all.join(", ")})${end}`;
  return line.length <= 96 || all.length === 0 ? line : `${start}${types(signature)}(\n  ${all.join(",\n  ")},\n)${end}`;
}

const modifiers = ({ flags }) =>
  ["static", "abstract", "readonly"]
    .filter((name) => flags[`is${name[0].toUpperCase()}${name.slice(1)}`])
    .map((name) => `${name} `)
    .join("");

function property(of) {
  return `${modifiers(of)}${of.name}${of.flags.isOptional ? "?" : ""}: ${of.type}`;
}

function member(of) {
  const base = { name: of.name, kind: "property", signature: "", doc: comment(of) };
  if (of.kind === ReflectionKind.Accessor) {
    const signature = of.getSignature ?? of.setSignature;
    return { ...base, signature: `${of.setSignature ? "" : "readonly "}${of.name}: ${signature.type}`, doc: comment(signature) };
  }
  if (of.signatures) {
    const isNew = of.kind === ReflectionKind.Constructor;
    const lines = of.signatures.map((signature) =>
      call(isNew ? `new ${of.parent.name}` : modifiers(of) + of.name, signature, isNew ? "" : `: ${signature.type}`),
    );
    return {
      ...base,
      kind: isNew ? "constructor" : "method",
      signature: lines.join("\n"),
      doc: comment(of.signatures.find(({ comment }) => comment) ?? of),
    };
  }
  return { ...base, signature: property(of) };
}

/** Returns the properties of an object type, which are drawn like an interface's. */
const shaped = (of) => (of.type?.type === "reflection" && !of.type.declaration.signatures ? of.type.declaration.children : undefined);

function item(of) {
  const base = { name: of.name, kind: ReflectionKind.singularString(of.kind).toLowerCase(), doc: comment(of) };
  const children = shaped(of) ?? of.children?.filter(({ kind }) => kind & MEMBERS) ?? [];
  const members = children.filter(({ flags, inheritedFrom }) => !flags.isPrivate && !flags.isProtected && !inheritedFrom).map(member);
  const inherited = children
    .filter(({ inheritedFrom, kind }) => inheritedFrom && kind !== ReflectionKind.Constructor)
    .map(({ name }) => name);
  if (of.kind === ReflectionKind.Function) {
    const lines = of.signatures.map((signature) => call(`function ${of.name}`, signature, `: ${signature.type}`));
    return { ...base, signature: lines.join("\n"), doc: comment(of.signatures.find(({ comment }) => comment)) };
  }
  if (of.kind === ReflectionKind.Variable) return { ...base, signature: `const ${of.name}: ${of.type}` };
  if (of.kind === ReflectionKind.TypeAlias && !shaped(of))
    return { ...base, kind: "type", signature: `type ${of.name}${types(of)} = ${of.type}` };
  const bases = of.extendedTypes?.map(String) ?? [];
  const kind = of.kind === ReflectionKind.Class ? "class" : "interface";
  const head = `${of.flags.isAbstract ? "abstract " : ""}${kind} ${of.name}${types(of)}${bases.length ? ` extends ${bases.join(", ")}` : ""}`;
  return { ...base, kind, signature: head, bases, members, inherited };
}

const modules = project.children.map((module) => {
  const isMain = module.name === "index";
  const items = module.children.filter(({ kind }) => kind !== ReflectionKind.Reference).map(item);
  return { name: isMain ? "workglow-limit" : `workglow-limit/${module.name}`, doc: comment(module), items };
});
modules.sort((a, b) => (a.name < b.name ? -1 : 1)); // The package's own name is the shortest.
writeFileSync(process.argv[2], JSON.stringify({ title: "Node", fence: "ts", modules }, null, 1));
