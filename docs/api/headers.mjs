// Writes the references of C and C++ as data, from the comments of their headers: docs/api/headers.mjs DIRECTORY.

import { readFileSync, writeFileSync } from "node:fs";

const root = new URL("../..", import.meta.url).pathname;
const header = (name) => readFileSync(`${root}include/${name}`, "utf8").split("\n");

/** Returns comment lines without their marks. */
const uncomment = (lines) => lines.map((line) => line.replace(/^\s*\/\/\/? ?/, "")).join("\n");
const isComment = (line) => /^\s*\/\//.test(line ?? "");

/** Returns the opened less the closed brackets of a line. Literals do not count. */
function depth(line, open, close) {
  const code = line.replace(/\/\/.*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'/g, "");
  return code.split(open).length - code.split(close).length;
}

/** Returns the lines without their common indentation. */
function undent(lines) {
  const least = Math.min(...lines.filter((line) => line.trim()).map((line) => line.match(/^ */)[0].length));
  return lines.map((line) => line.slice(least)).join("\n");
}

/** Returns the end of the declaration that begins at a line: after its `;`, or after its body. */
function declaration(lines, from) {
  let braces = 0;
  let round = 0;
  let hadBody = false;
  for (let i = from; i < lines.length; i++) {
    braces += depth(lines[i], "{", "}");
    round += depth(lines[i], "(", ")");
    hadBody ||= /\{/.test(lines[i].replace(/"[^"]*"/g, ""));
    const code = lines[i].replace(/\/\/.*/, "").trimEnd();
    if (braces === 0 && round === 0 && (code.endsWith(";") || (hadBody && code.endsWith("}")))) return i + 1;
  }
  return lines.length;
}

/** Returns the comment at the head of a header. */
function preface(lines) {
  const end = lines.findIndex((line) => !isComment(line));
  return { text: uncomment(lines.slice(0, end)), end };
}

function c() {
  const lines = header("workglow_limit.h");
  const { text, end } = preface(lines);
  const [functions, types, constants] = [[], [], []];
  let comment = [];
  for (let i = end; i < lines.length; ) {
    const line = lines[i];
    if (isComment(line)) {
      comment = [];
      while (isComment(lines[i])) comment.push(lines[i++]);
      continue;
    }
    const doc = uncomment(comment);
    if (/^#define WGL_\w+ ?\\?./.test(line)) {
      const from = i;
      while (lines[i].endsWith("\\")) i++;
      const name = line.match(/^#define (\w+)/)[1];
      // Initial values have no comments of their own.
      const isInitial = name.endsWith("_INIT");
      constants.push({
        name,
        kind: "macro",
        signature: lines.slice(from, ++i).join("\n"),
        doc: isInitial ? `The initial value of a \`${name.toLowerCase().replace(/_init$/, isInitial && "")}\`.` : doc,
      });
    } else if (/^(typedef|[a-z_].*\()/.test(line)) {
      const from = i;
      i = declaration(lines, i);
      const code = lines.slice(from, i).join("\n");
      const isType = line.startsWith("typedef");
      const name = isType ? (code.match(/(\w+);$/) ?? code.match(/\(\*(\w+)\)/))[1] : code.match(/(\w+)\(/)[1];
      (isType ? types : functions).push({
        name,
        kind: isType ? "type" : "function",
        signature: code.replace(/\n +/g, isType ? "$&" : "\n    "),
        doc,
      });
    } else {
      if (line.trim() && !/^#|^extern "C" \{$|^\}/.test(line)) throw new Error(`workglow_limit.h:${i + 1} is not understood: ${line}`);
      i++;
    }
    comment = [];
  }
  const undocumented = functions.filter(({ doc }) => !doc);
  if (undocumented.length) throw new Error(`workglow_limit.h says nothing of ${undocumented.map(({ name }) => name).join(", ")}`);
  return {
    title: "C",
    fence: "c",
    include: "#include <workglow_limit.h>",
    doc: text,
    modules: [
      { name: "Functions", doc: "", items: functions },
      { name: "Types", doc: "", items: types },
      { name: "Constants", doc: "", items: constants },
    ],
  };
}

/** Returns a declaration without its body. */
function signature(lines) {
  const code = undent(lines);
  let round = 0;
  let _angle = 0;
  for (let i = 0; i < code.length; i++) {
    const char = code[i];
    if (char === "(") round++;
    if (char === ")") round--;
    if (char === "<") _angle++;
    if (char === ">") _angle--;
    if (round > 0) continue;
    const isInitialiser = char === ":" && code[i + 1] !== ":" && code[i - 1] !== ":" && /\)\s*(noexcept)?\s*$/.test(code.slice(0, i));
    if (char === "{" && /[)\w]\s*$/.test(code.slice(0, i)) && !/=\s*\w*$/.test(code.slice(0, i))) return code.slice(0, i).trimEnd();
    if (isInitialiser) return code.slice(0, i).trimEnd();
  }
  return code.replace(/;$/, "").trimEnd();
}

function nameOf(code) {
  const plain = code.replace(/\[\[\w+\]\]|template <[^>]*>|\/\/.*/g, "").trim();
  const operator = plain.match(/operator\s*(bool|[^\s(]+)/);
  if (operator) return `operator ${operator[1]}`.replace(/operator (?=\W)/, "operator");
  const type = plain.match(/^(?:using|enum class) (\w+)/);
  if (type) return type[1];
  const declared = plain.replace(/\s*(?:=(?!=)|\{)[^]*$/, "");
  return (declared.match(/(~?\w+)\s*\(/) ?? declared.match(/(\w+(?:, \w+)*)$/))[1];
}

function cpp() {
  const lines = header("workglow_limit.hpp");
  const { text, end } = preface(lines);
  const items = [];
  /** Reads the declarations of one scope. Members that are not public are left out. */
  function scope(from, to, add, isClass, isOpen = true) {
    let comment = [];
    for (let i = from; i < to; ) {
      const line = lines[i];
      if (/^\s*\/\/\//.test(line)) {
        comment.push(line);
        i++;
        continue;
      }
      if (!line.trim() || isComment(line) || line.startsWith("#")) {
        if (line.startsWith("#") && line.endsWith("\\")) while (lines[i].endsWith("\\")) i++;
        comment = [];
        i++;
        continue;
      }
      if (/^\s*(public|private|protected):/.test(line)) {
        isOpen = line.includes("public");
        i++;
        continue;
      }
      const last = declaration(lines, i);
      const code = lines.slice(i, last);
      const doc = uncomment(comment);
      comment = [];
      const type = code[0].match(/^\s*(?:template <.*> )?(class|struct)\s+(?:\[\[\w+\]\] )?(\w+)/);
      if (/^\s*namespace detail/.test(line)) i = last;
      else if (/^\s*(?:inline )?namespace/.test(line)) {
        scope(i + 1, last - 1, add, false);
        i = last;
      } else if (type && /\{/.test(code.join(""))) {
        if (isOpen) {
          const members = [];
          const opened = code.findIndex((one) => one.trimEnd().endsWith("{"));
          const head = undent(code.slice(0, opened + 1))
            .replace(/\s*\{$/, "")
            .replace(/\[\[\w+\]\] /, "");
          if (code.length > 1) scope(i + opened + 1, last - 1, (one) => members.push(one), true, type[1] === "struct");
          const isOwn = ({ name, signature, doc }) => name !== `~${type[2]}` && !(!doc && /&&|= (default|delete)/.test(signature));
          add({
            name: type[2],
            kind: "class",
            signature: head,
            doc,
            members: members.filter(isOwn),
            bases: [...head.matchAll(/public (\w+)/g)].map(([, base]) => base),
            inherited: [],
          });
        }
        i = last;
      } else {
        const isEnum = /^\s*enum class/.test(line);
        const text = isEnum ? undent(code) : signature(code);
        // Forward declarations and definitions of declared members add nothing.
        const isHidden = !isOpen || /^\s*(friend|static_assert|class \w+;)|^inline [\w ]+::/.test(line);
        const isCall = /\(/.test(text.replace(/=[^]*/, ""));
        const kind = isEnum || text.startsWith("using") ? "type" : isCall ? (isClass ? "method" : "function") : "property";
        if (!isHidden) add({ name: nameOf(text), kind, signature: text, doc });
        i = last;
      }
    }
  }
  scope(end, lines.length, (one) => items.push(one), false);
  return {
    title: "C++",
    fence: "cpp",
    include: "#include <workglow_limit.hpp>",
    doc: text,
    modules: [{ name: "workglow", doc: "", items }],
  };
}

const directory = process.argv[2];
writeFileSync(`${directory}/c.json`, JSON.stringify(c(), null, 1));
writeFileSync(`${directory}/cpp.json`, JSON.stringify(cpp(), null, 1));
