// Numbers and strings as people read them, and elements made of them. Strings go into the page as text, never as HTML.

const LONGEST = 300;
const LONGEST_IN_TABLE = 64;

// What a peer named itself may hold anything. Control, format and direction characters become "?", as in
// `ftis-node health`; the rest can't leave its element.
export function printable(text, longest = LONGEST) {
  const characters = [...String(text).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "?")];
  return characters.length > longest ? characters.slice(0, longest).join("") + "…" : characters.join("");
}

export function element(tag, { text, label, title, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== "") made.setAttribute(name, value);
  }
  if (label !== undefined) made.dataset.label = label;
  if (title !== undefined) made.title = printable(title);
  if (text !== undefined) made.append(text);
  made.append(...children);
  return made;
}

// Somebody else's words: isolated, so that right-to-left text doesn't turn what stands beside it.
export function foreign(text) {
  return element("bdi", { text: printable(text) });
}

// In a table's cell only the beginning; all of it where the pointer rests.
export function brief(text) {
  const [short, whole] = [printable(text, LONGEST_IN_TABLE), printable(text)];
  return element("bdi", { text: short, title: short === whole ? undefined : whole });
}

export function count(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.floor(Math.log10(size)) + 1) });
}

export function reward(value) {
  return value === null || value === undefined ? "–" : value.toFixed(3);
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${number(100 * value)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 999.5 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${power === 0 ? Math.round(value) : number(value)} ${units[power]}`;
}

export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function plural(many, one, several = one + "s") {
  return `${count(many)} ${many === 1 ? one : several}`;
}

export function table(columns, rows, kind = "") {
  const head = element("tr", { role: "row" });
  for (const column of columns) {
    head.append(element("th", { text: column.name, scope: "col", role: "columnheader", class: column.class }));
  }
  const body = element("tbody", { role: "rowgroup" });
  for (const row of rows) {
    const line = element("tr", { role: "row" });
    row.forEach((cell, index) => {
      const column = columns[index];
      const parts = Array.isArray(cell) ? cell : [cell];
      line.append(element("td", { label: column.name, role: "cell", class: column.class }, ...parts));
    });
    body.append(line);
  }
  return element("table", { class: kind, role: "table" }, element("thead", { role: "rowgroup" }, head), body);
}
