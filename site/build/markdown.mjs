// The changes that the site makes to plain markdown: it drops comments, turns code in several languages into tabs, and adapts links.

import { LANGUAGES, titled } from "./languages.mjs";
import { target } from "./pages.mjs";

/** Returns a heading's anchor, as code hosts make it. */
export const slugify = (title) =>
  title
    .trim()
    .toLowerCase()
    .replace(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, "")
    .replaceAll(" ", "-");

const COMMENTS = /^\s*(?:<!--[^]*?-->\s*)+$/;

const languageOf = (fence) => fence.info.trim().split(/[\s{]/)[0];
/** Languages without a grammar. */
const UNCOLOURED = new Set(["promql"]);

/** Removes comments, which are for the runner of the pages' code. */
function withoutComments(state) {
  state.tokens = state.tokens.filter((token) => !(token.type === "html_block" && COMMENTS.test(token.content)));
  for (const token of state.tokens) {
    if (token.type === "fence" && UNCOLOURED.has(languageOf(token))) token.info = "text";
    if (token.children)
      token.children = token.children.filter((child) => !(child.type === "html_inline" && child.content.startsWith("<!--")));
  }
}

/** Returns the tokens of a group of tabs. `panels` has pairs of a language and its tokens. */
function tabs(state, panels, kind) {
  const open = (content) => Object.assign(new state.Token("html_block", "", 0), { content });
  const langs = panels.map(([language]) => language).join(" ");
  const tokens = [open(`<LangTabs langs="${langs}" kind="${kind}">\n`)];
  for (const [language, inside] of panels) tokens.push(open(`<template #${language}>\n\n`), ...inside, open(`\n</template>\n`));
  return [...tokens, open(`</LangTabs>\n`)];
}

/** Turns adjacent blocks of different languages into tabs. A program's output and its build command stay below it. */
function tabsOfCode(state) {
  const { tokens } = state;
  const result = [];
  for (let i = 0; i < tokens.length; ) {
    let end = i;
    while (tokens[end]?.type === "fence" && tokens[end].level === tokens[i].level) end++;
    if (end === i) {
      result.push(tokens[i++]);
      continue;
    }
    const before = [];
    const panels = [];
    for (const fence of tokens.slice(i, end)) {
      const language = languageOf(fence);
      if (language in LANGUAGES) panels.push([language, [fence]]);
      else (panels.at(-1)?.[1] ?? before).push(fence);
    }
    const isGroup = panels.length > 1 && new Set(panels.map(([language]) => language)).size === panels.length;
    result.push(...(isGroup ? [...before, ...tabs(state, panels, "code")] : tokens.slice(i, end)));
    i = end;
  }
  state.tokens = result;
}

/** Turns adjacent sections into tabs if each has the name of a language as its title. */
function tabsOfSections(state) {
  const { tokens } = state;
  const result = [];
  /** Returns the language and the end of the section that begins here. */
  const section = (at) => {
    const heading = tokens[at];
    if (heading?.type !== "heading_open" || heading.level !== 0) return undefined;
    const language = titled(tokens[at + 1].content);
    if (language === undefined) return undefined;
    let end = at + 1;
    while (end < tokens.length && !(tokens[end].type === "heading_open" && tokens[end].level === 0 && tokens[end].tag <= heading.tag))
      end++;
    return { language, tag: heading.tag, end };
  };
  for (let i = 0; i < tokens.length; ) {
    const panels = [];
    let at = i;
    for (let next = section(at); next && (at === i || next.tag === tokens[i].tag); next = section(at)) {
      tokens[at].attrJoin("class", "tab-heading");
      panels.push([next.language, tokens.slice(at, next.end)]);
      at = next.end;
    }
    if (panels.length > 1) result.push(...tabs(state, panels, "section"));
    else result.push(...tokens.slice(i, (at = i + 1)));
    i = at;
  }
  state.tokens = result;
}

/** Points links at the site's pages, and other files at the repository. Without an address of the repository those are plain text. */
function links(state) {
  const page = state.env.relativePath;
  for (const block of state.tokens) {
    let isLink = true;
    block.children =
      block.children?.filter((token) => {
        if (token.type === "image") token.attrSet("src", target(page, token.attrGet("src")));
        if (token.type === "link_open") {
          const href = target(page, token.attrGet("href"));
          isLink = href !== undefined;
          if (isLink) token.attrSet("href", href);
        }
        return isLink || !token.type.startsWith("link_");
      }) ?? null;
  }
}

/** Makes empty column heads plain cells, and keeps cells with much text from becoming narrow. */
function cells(state) {
  for (const [i, token] of state.tokens.entries()) {
    const { content } = state.tokens[i + 1] ?? {};
    if (token.type === "th_open" && !content) token.tag = state.tokens[i + 2].tag = "td";
    if (token.type === "td_open" && content.length > 40) token.attrJoin("class", "long");
  }
}

export function plugin(md) {
  // Comments go first, so that the blocks around them are adjacent.
  md.core.ruler.after("block", "comments", withoutComments);
  md.core.ruler.after("inline", "inline-comments", withoutComments);
  md.core.ruler.after("inline-comments", "links", links);
  md.core.ruler.push("cells", cells);
  md.core.ruler.push("code-tabs", tabsOfCode);
  md.core.ruler.push("section-tabs", tabsOfSections);
  // A wide table scrolls in its own box, which the keyboard reaches.
  md.renderer.rules.table_open = () => `<div class="table" tabindex="0" role="group" aria-label="Table"><table>\n`;
  md.renderer.rules.table_close = () => `</table></div>\n`;
}
