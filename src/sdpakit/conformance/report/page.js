
"use strict";
// Builds the list of cases from the data of the page. Every text goes into the document as text,
// by append() and textContent, never as markup.
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const MARKS = { fail: "✗", error: "!", hang: "…", crash: "†", expected: "≈", refused: "–", ok: "✓" };
  const WRONG = ["fail", "error", "hang", "crash"];
  const BOUNDS = { sharp: "sharp (random inputs)", hard: "hard (inputs chosen to hurt)" };

  const cases = run.cases.map(([id, family, rules, catches, source, bound, level, seed, quoted, refuses]) => ({
    id, family, rules, catches, source, bound, level, seed, quoted: quoted || id, refuses, outcomes: [],
  }));
  for (const [place, target, verdict, share, message, worst, unjudged, seconds, reason] of run.outcomes) {
    cases[place].outcomes.push({
      target: run.targets[target], verdict: run.verdicts[verdict], share: share || 0, worst,
      message: run.texts[message || 0], unjudged: run.texts[unjudged || 0], seconds: seconds || 0,
      reason: run.texts[reason || 0],
    });
  }
  const order = (outcome) => run.verdicts.indexOf(outcome.verdict);
  for (const entry of cases) {
    entry.outcomes.sort((a, b) => order(a) - order(b));
    const said = entry.outcomes.map((o) => `${o.target.name} ${o.message} ${o.reason}`);
    entry.haystack = [entry.id, ...entry.rules, entry.catches, entry.source, ...said].join(" ").toLowerCase();
  }
  const byId = new Map(cases.map((entry) => [entry.id, entry]));
  const came = run.verdicts.filter((v) => cases.some((c) => c.outcomes.some((o) => o.verdict === v)));

  const $ = (id) => document.getElementById(id);
  const asked = { verdicts: new Set(), target: "", text: "" };

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  const mark = (verdict) => element("span", { class: `mark ${verdict}`, "aria-hidden": "true" }, MARKS[verdict]);
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const address = (id) => `#${encodeURIComponent(id)}`;

  // Text with `code` in it, as the rules have.
  function prose(text) {
    return text.split("`").map((part, i) => (i % 2 ? element("code", {}, part) : part.replaceAll("**", "")));
  }

  // A long id may break behind its dots and underscores.
  function breakable(id) {
    return id.split(/(?<=[._])/).flatMap((part, i) => (i ? [element("wbr", {}), part] : [part]));
  }

  function counts(outcomes, names) {
    return came.flatMap((verdict) => {
      const those = outcomes.filter((o) => o.verdict === verdict);
      if (!those.length) return [];
      let text = ` ${those.length} ${verdict}`;
      if (names) {
        text = ` ${verdict}`;
        if (run.targets.length > 1) {
          text += those.length > 3 ? `: ${those.length} targets` : `: ${those.map((o) => o.target.name).join(", ")}`;
        }
      }
      return [element("span", { class: `count ${verdict}` }, mark(verdict), text), " "];
    });
  }

  function looked(entry) {
    return asked.target === "" ? entry.outcomes : entry.outcomes.filter((o) => o.target.name === asked.target);
  }
  function matches(entry) {
    const wanted = looked(entry).some((o) => !asked.verdicts.size || asked.verdicts.has(o.verdict));
    return wanted && asked.text.split(/\s+/).every((word) => entry.haystack.includes(word));
  }

  function fact(list, name, ...value) {
    list.append(element("dt", {}, name), element("dd", {}, ...value));
  }

  function aboutCase(entry) {
    const list = element("dl", { class: "facts" });
    if (!entry.level) fact(list, "note", "this version of sdpakit has no such case");
    for (const rule of entry.rules) fact(list, rule, ...prose(run.rules[rule] || ""));
    if (/^https:\/\//.test(entry.source)) {
      const link = element("a", { href: entry.source, rel: "noopener noreferrer" }, entry.source);
      fact(list, "reported in", link);
    } else if (entry.source) fact(list, "reported in", entry.source);
    if (entry.refuses) fact(list, "right is", element("code", {}, entry.refuses), " is raised");
    if (entry.bound) fact(list, "bound", BOUNDS[entry.bound] || entry.bound);
    if (entry.level) fact(list, "level", entry.level);
    if (entry.seed !== null) fact(list, "seed", String(entry.seed));
    const link = element("a", { class: "link", href: address(entry.id) }, address(entry.id));
    fact(list, "link", link);
    return list;
  }

  function amount(x) {
    return typeof x === "number" && x !== 0 && Math.abs(x) < 1e-4 ? x.toExponential() : String(x);
  }
  function shareText(share) {
    return typeof share === "string" ? "∞" : String(Number(share.toPrecision(3)));
  }
  function bar(share) {
    const over = typeof share === "string" || share > 1;
    const fill = element("i", {});
    fill.style.width = over ? "100%" : `${100 * share}%`;
    return element("span", { class: over ? "bar over" : "bar", "aria-hidden": "true" }, fill);
  }

  function measured(outcome) {
    const list = element("dl", { class: "facts" });
    if (outcome.worst) {
      const [output, index, got, right, bound] = outcome.worst;
      fact(list, "where", element("code", {}, index.length ? `${output}[${index.join(", ")}]` : output));
      fact(list, "got", element("span", { class: "number" }, amount(got)));
      fact(list, "right is", element("span", { class: "number" }, amount(right)));
      fact(list, "bound", element("span", { class: "number" }, amount(bound)));
    }
    if (outcome.unjudged) fact(list, "not judged", outcome.unjudged);
    if (outcome.reason) fact(list, "known", outcome.reason);
    return list;
  }
  function headline(outcome) {
    const head = element("h3", {}, mark(outcome.verdict), ` ${outcome.verdict}: ${outcome.target.name}`);
    const line = element("p", { class: "measure" });
    if (outcome.share) {
      const text = element("span", { class: "number" }, shareText(outcome.share));
      line.append("share of the bound: ", text, bar(outcome.share), " ");
    }
    if (outcome.seconds) line.append(`took ${outcome.seconds} s`);
    return [head, line];
  }

  function copyable(text) {
    const code = element("code", {}, text);
    const button = element("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(text, code)) ? "Copied" : "Selected: copy it by key";
      setTimeout(() => { button.textContent = "Copy"; }, 2500);
    });
    return element("div", { class: "command" }, code, button);
  }
  async function copied(text, code) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // no clipboard for a file opened from disk in some browsers: leave the text selected
      getSelection().selectAllChildren(code);
      return false;
    }
  }

  function outcomeBlock(entry, outcome) {
    const block = element("section", { class: `outcome ${outcome.verdict}` });
    block.append(...headline(outcome));
    if (outcome.message) block.append(element("p", { class: "message" }, outcome.message));
    block.append(measured(outcome), copyable(`${outcome.target.command} --case ${entry.quoted}`));
    return block;
  }

  function caseItem(entry) {
    const outcomes = looked(entry);
    const summary = element("summary", {}, element("span", { class: "id" }, ...breakable(entry.id)), ...counts(outcomes, true));
    if (entry.catches) summary.append(element("span", { class: "catches" }, `catches: ${entry.catches}`));
    const item = element("details", { class: "case", id: `case=${entry.id}` }, summary);
    whenOpened(item, () => {
      const told = (outcome) => outcomeBlock(entry, outcome);
      const bad = outcomes.filter((o) => WRONG.includes(o.verdict) || o.verdict === "expected");
      const good = outcomes.filter((o) => !bad.includes(o));
      item.append(element("div", { class: "body" }, ...bad.map(told), aboutCase(entry), ...good.map(told)));
    });
    return item;
  }

  // Fills an element the first time it is opened: a page of thousands of outcomes opens at once.
  function whenOpened(item, fill) {
    let filled = false;
    item.fill = () => {
      if (!filled) fill();
      filled = true;
    };
    item.addEventListener("toggle", () => item.open && item.fill());
  }
  function open(item) {
    item.fill();
    item.open = true;
  }

  function familyItem(family, entries, all) {
    const many = entries.length === all ? plural(all, "case") : `${entries.length} of ${plural(all, "case")}`;
    const outcomes = entries.flatMap(looked);
    const name = element("span", { class: "name" }, family);
    const summary = element("summary", {}, name, `${many}  `, ...counts(outcomes, false));
    const item = element("details", { class: "family", id: `family=${family}` }, summary);
    whenOpened(item, () => item.append(...entries.map(caseItem)));
    return item;
  }

  function show() {
    const found = cases.filter(matches);
    const items = run.families.flatMap((family) => {
      const entries = found.filter((entry) => entry.family === family);
      const all = cases.filter((entry) => entry.family === family).length;
      return entries.length ? [familyItem(family, entries, all)] : [];
    });
    $("families").replaceChildren(...items);
    if (found.length <= 60) items.forEach(open);
    const all = found.length === cases.length;
    $("status").textContent = all ? `All ${plural(cases.length, "case")}.` :
      `${found.length} of ${plural(cases.length, "case")}. The others are filtered out.`;
    $("everything").disabled = all;
  }

  function ask(verdicts, target, text) {
    asked.verdicts = new Set(verdicts);
    asked.target = target;
    asked.text = text.trim().toLowerCase();
    for (const box of $("verdicts").querySelectorAll("input")) box.checked = asked.verdicts.has(box.value);
    $("target").value = target;
    if ($("text").value.trim().toLowerCase() !== asked.text) $("text").value = text;
    show();
  }

  function goTo(item) {
    document.querySelectorAll(".here").forEach((other) => other.classList.remove("here"));
    item.classList.add("here");
    open(item);
    item.scrollIntoView({ block: "start" });
    item.querySelector("summary").focus({ preventScroll: true });
  }

  // "#id" is a case; "#family=NAME&target=NAME" a family, on one target. False if it is neither.
  function follow() {
    const text = location.hash.slice(1);
    let id;
    try {
      id = decodeURIComponent(text);
    } catch (error) {
      if (!(error instanceof URIError)) throw error;
      return false;
    }
    const entry = byId.get(id);
    const wanted = new URLSearchParams(text);
    const family = entry ? entry.family : wanted.get("family");
    if (!run.families.includes(family)) return false;
    const target = run.targets.some((t) => t.name === wanted.get("target")) ? wanted.get("target") : "";
    if (!entry || !matches(entry)) ask([], entry ? "" : target, "");
    const item = $(`family=${family}`);
    open(item);
    goTo(entry ? $(`case=${entry.id}`) : item);
    return true;
  }

  function controls() {
    for (const verdict of came) {
      const box = element("input", { type: "checkbox", value: verdict });
      const count = cases.flatMap((entry) => entry.outcomes).filter((o) => o.verdict === verdict).length;
      box.addEventListener("change", read);
      $("verdicts").append(element("label", { class: verdict }, box, mark(verdict), `${verdict} ${count}`));
    }
    for (const target of run.targets) {
      $("target").append(element("option", { value: target.name }, target.name));
    }
    $("target").addEventListener("change", read);
    let pause;
    $("text").addEventListener("input", () => {
      clearTimeout(pause);
      pause = setTimeout(read, 150);
    });
    $("filter").addEventListener("submit", (event) => event.preventDefault());
    $("everything").addEventListener("click", () => ask([], "", ""));
    $("filter").hidden = cases.length === 0;
  }
  function read() {
    const boxes = [...$("verdicts").querySelectorAll("input:checked")];
    ask(boxes.map((box) => box.value), $("target").value, $("text").value);
  }

  controls();
  addEventListener("hashchange", follow);
  // A link to where one already is changes no hash and still leads there.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) setTimeout(follow);
  });
  // On paper nothing can be opened: what is wrong stands there in full.
  addEventListener("beforeprint", () => {
    for (const item of document.querySelectorAll("details.family")) open(item);
    for (const entry of cases.filter((c) => matches(c) && looked(c).some((o) => WRONG.includes(o.verdict)))) {
      open($(`case=${entry.id}`));
    }
  });
  ask(came.filter((verdict) => WRONG.includes(verdict)), "", "");
  $("cut").hidden = !run.cut;
  if (!cases.length) $("status").textContent = "There is no case.";
  follow();
})();
