"use strict";
(() => {
  const parsed = (id) => JSON.parse(document.getElementById(id).textContent);

  // A pointer over any chart reads all of them at the same update.
  const data = parsed("hover");
  const figures = [...document.querySelectorAll("[data-hover]")].map((figure) => {
    const cross = document.createElement("i");
    cross.className = "cross";
    figure.querySelector(".plot").append(cross);
    const keys = [...figure.querySelectorAll("[data-name]")].map((b) => [b, b.textContent]);
    return { plot: figure.querySelector(".plot"), cross, keys, output: figure.querySelector("output") };
  });
  const first = data.x[0], span = data.x[data.x.length - 1] - first;
  const read = (place) => {
    for (const { cross, keys, output } of figures) {
      const share = span ? (data.x[place] - first) / span : 0.5;
      cross.style.display = "block";
      cross.style.left = 100 * (data.left + share * (data.right - data.left)) + "%";
      output.textContent = "update " + data.x[place];
      for (const [b] of keys) b.textContent = data.values[b.dataset.name][place] ?? "-";
    }
  };
  const leave = () => {
    for (const { cross, keys, output } of figures) {
      cross.style.display = "none";
      output.textContent = "";
      for (const [b, last] of keys) b.textContent = last;
    }
  };
  for (const { plot } of figures) {
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - data.left) / (data.right - data.left);
      const wanted = first + Math.min(1, Math.max(0, share)) * span;
      let place = 0; // updates ascend; few enough to look at all
      data.x.forEach((x, i) => { if (Math.abs(x - wanted) < Math.abs(data.x[place] - wanted)) place = i; });
      read(place);
    });
    plot.addEventListener("pointerleave", leave);
  }

  // Samples: searched as one types, shown a page at a time.
  const samples = parsed("data"), list = document.getElementById("list");
  if (!list) return;
  const PAGE = 25, more = document.getElementById("more"), find = document.getElementById("find");
  const which = document.getElementById("which"), reason = document.getElementById("reason");
  const mean = samples.reduce((sum, s) => sum + s.reward, 0) / samples.length;
  const right = (s) => s.outcome >= 1, told = samples.some(right) && !samples.every(right);
  const level = (s) => Math.abs(s.reward - mean) < 1e-9 ? "" : s.reward > mean ? "good" : "bad"; // none where all are alike
  const tone = (s) => !told ? level(s) : right(s) ? "good" : "bad"; // shaping pays wrong answers too
  const kinds = {
    "": () => true, right, wrong: (s) => !right(s),
    best: (s) => level(s) === "good", worst: (s) => level(s) !== "good", cut: (s) => s.finish === "length",
  };
  const pattern = (words) => new RegExp(words.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu");
  const reasons = (s) => Object.entries(s.reasons).map(([name, why]) => `${name}: ${why}`);
  for (const s of samples) s.hay = [s.prompt, s.text, s.gold, ...reasons(s), ...Object.values(s.extracted), `group ${s.group}`, `update ${s.update}`].join("\n");
  for (const why of new Set(samples.flatMap(reasons))) reason.append(new Option(why, why));

  const node = (tag, kind, text) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const marked = (text, words) => {
    const pre = node("pre");
    let from = 0;
    for (const found of words ? text.matchAll(pattern(words)) : []) {
      pre.append(text.slice(from, found.index), node("mark", "", found[0]));
      from = found.index + found[0].length;
    }
    pre.append(text.slice(from));
    return pre;
  };
  const body = (s, words) => {
    const made = node("div", "body");
    const part = (heading, text) => { if (text) made.append(node("h3", "", heading), marked(text, words)); };
    part("prompt" + (s.task ? ` (row ${s.row} of ${s.task})` : ` (row ${s.row})`), s.prompt || "[this version of the run kept token ids only]");
    part("answer", s.text || "[empty]");
    part("gold", s.gold);
    part("verdict", [
      ...Object.entries(s.parts).map(([name, value]) => `${name} = ${value ?? "not applicable"}` + (s.reasons[name] ? `: ${s.reasons[name]}` : "") + (name in s.extracted ? `; read as the answer: ${s.extracted[name]}` : "")),
    ].join("\n"));
    made.append(node("p", "hint", `group ${s.group} sample ${s.sample} attempt ${s.attempt}, update ${s.update}, version ${s.versions.join(", ")}, ${s.tokens} tokens, ended by ${s.finish}` + (s.instance ? `, ${s.instance}, ${s.seconds.toFixed(1)} s` : "")));
    return made;
  };
  const card = (s, words) => {
    const made = node("details", "sample"), head = node("summary");
    head.append(node("span", "reward " + tone(s), String(+s.reward.toFixed(3))),
      node("span", "line", (s.prompt ? s.prompt.slice(0, 90) + " → " : "") + s.text.slice(0, 200)),
      node("span", "tag far", reasons(s).join(", ") + (s.finish === "length" ? " cut" : "")), node("span", "tag", `u${s.update}`));
    made.append(head);
    made.addEventListener("toggle", () => { if (made.open && made.children.length === 1) made.append(body(s, words)); });
    return made;
  };
  let chosen = [], shown = 0;
  const grow = () => {
    const words = find.value.trim();
    list.append(...chosen.slice(shown, shown + PAGE).map((s) => card(s, words)));
    shown = Math.min(chosen.length, shown + PAGE);
    more.hidden = shown >= chosen.length;
  };
  const search = () => {
    const words = find.value.trim(), wanted = pattern(words);
    chosen = samples.filter((s) => s.hay.search(wanted) >= 0
      && (!reason.value || reasons(s).includes(reason.value))
      && kinds[which.value](s));
    document.getElementById("found").textContent = `${chosen.length} of ${samples.length}`;
    list.replaceChildren();
    shown = 0;
    grow();
  };
  for (const control of [find, which, reason]) control.addEventListener("input", search);
  more.addEventListener("click", grow);
  document.querySelector(".find").addEventListener("submit", (event) => event.preventDefault());
  search();
})();
