"use strict";
// Draws the programs of the page, and lets a reader follow them by mouse and keyboard.
(() => {
  const ROW = 44, HIGH = 24, MARGIN = 16;
  const root = document.getElementById("programs"), holder = document.getElementById("programs-data");
  if (!root || !holder) return;
  const data = JSON.parse(holder.textContent);
  const [OPERATION, TYPE, OPERANDS, OWN, INNER, ROLE, KERNELS, STORED, FROM] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
  const ROLES = {
    given: "given by the caller, or by the forward", constant: "a constant", index: "an index or a size",
    kernel: "computed by a kernel", pytorch: "computed by a call of PyTorch's", view: "a view, which costs nothing",
    once: "computed once for each graph", unused: "rewritten into other values, or not needed",
  };
  let program, users, elements, chosen = -1;

  const make = (name, attributes = {}, ...content) => {
    const svg = ["svg", "g", "rect", "text", "path", "title"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content);
    return made;
  };
  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "") || "part";

  const choose = make("div", { class: "choose", role: "group", "aria-label": "Forms of the program" });
  const canvas = make("div", {
    class: "canvas", tabindex: "0", role: "application",
    "aria-label": "Graph of the program. Arrow keys: up to what a value reads, down to what reads it, left and right " +
      "along its layer. Enter goes to the kernel.",
  });
  const about = make("div", { class: "about", "aria-live": "polite" });
  root.replaceChildren(choose, make("div", { class: "walk" }, canvas, about));

  const buttons = data.programs.map((one, number) => {
    const button = make("button", { type: "button", "aria-pressed": "false" }, one.title);
    button.addEventListener("click", () => show(number));
    choose.append(button);
    return button;
  });

  function edge(from, to, bends) {
    const [x1, y1, x2, y2] = [from[2], from[3] * ROW + HIGH, to[2], to[3] * ROW];
    const points = [[x1, y1], ...bends.map((x, i) => [x, (from[3] + 1 + i) * ROW + HIGH / 2]), [x2, y2]];
    let text = `M${x1},${y1}`;
    for (let i = 1; i < points.length; i++) {
      const [ax, ay] = points[i - 1], [bx, by] = points[i], middle = (ay + by) / 2;
      text += `C${ax},${middle} ${bx},${middle} ${bx},${by}`;
    }
    return make("path", { d: text });
  }

  function show(number) {
    program = data.programs[number];
    chosen = -1;
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === number)));
    users = program.values.map(() => []);
    program.values.forEach((value, i) => value[OPERANDS].forEach((r) => users[r].push(i)));
    const nodes = new Map(program.nodes.map((node) => [node[0], node]));
    const layers = Math.max(0, ...program.nodes.map((node) => node[3])) + 1;
    const [width, height] = [program.width + 2 * MARGIN, layers * ROW + 2 * MARGIN];
    const paths = make("g"), boxes = make("g");
    elements = { nodes, paths: [], boxes: new Map(), far: paths };
    for (const [from, to, ...bends] of program.edges) {
      const [a, b] = [program.nodes[from], program.nodes[to]], path = edge(a, b, bends);
      elements.paths.push([a[0], b[0], path]);
      paths.append(path);
    }
    for (const node of program.nodes) {
      const [i, label, x, layer, wide] = node, value = program.values[i];
      const color = value[KERNELS].length ? ` k${value[KERNELS][0] % 6}` : "";
      const box = make("g", { class: value[ROLE] + color, transform: `translate(${x - wide / 2},${layer * ROW})` },
        make("title", {}, `${label}: ${value[TYPE]}`), make("rect", { width: wide, height: HIGH, rx: 3 }),
        make("text", { x: wide / 2, y: 16 }, label));
      box.addEventListener("click", () => select(i, false));
      box.addEventListener("pointerenter", () => near(i));
      box.addEventListener("pointerleave", () => near(-1));
      elements.boxes.set(i, box);
      boxes.append(box);
    }
    const inner = make("g", { transform: `translate(${MARGIN},${MARGIN})` }, paths, boxes);
    canvas.replaceChildren(make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, inner));
    const spaces = program.spaces.map(([name, words, rows]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, `${words} (${rows.toLocaleString("en")})`)));
    about.replaceChildren(make("h3", {}, program.title),
      make("p", {}, `${program.values.length} values, ${program.nodes.length} drawn. Choose one to follow it.`),
      make("p", {}, "A coloured frame: computed by the kernel of that colour. Dashes: by a call of PyTorch's. Dots: once a " +
        "graph. Grey: a view, or rewritten into others. Round: given. Constants, maps and sizes are not drawn, and long " +
        "connections only from a value that is chosen."),
      make("dl", {}, ...spaces));
    const top = program.nodes.filter((node) => node[3] === 0);
    const middle = top.reduce((sum, node) => sum + node[2], 0) / Math.max(1, top.length);
    canvas.scrollTo(Math.max(0, middle + MARGIN - canvas.clientWidth / 2), 0);
  }

  // Marks what the node under the pointer reads and who reads it.
  function near(i) {
    for (const [k, box] of elements.boxes) {
      box.classList.toggle("near", i >= 0 && (program.values[i][OPERANDS].includes(k) || users[i].includes(k)));
    }
  }

  function select(i, scroll = true) {
    chosen = i;
    elements.far.querySelectorAll(".far").forEach((path) => path.remove());
    for (const [from, to, path] of elements.paths) {
      path.setAttribute("class", to === i ? "read" : from === i ? "user" : "");
    }
    for (const [from, to] of program.far) {
      const [a, b] = [program.nodes[from], program.nodes[to]];
      if (a[0] !== i && b[0] !== i) continue;
      const path = edge(a, b, []);
      path.setAttribute("class", `far ${b[0] === i ? "read" : "user"}`);
      elements.far.append(path);
    }
    for (const [k, box] of elements.boxes) box.classList.toggle("chosen", k === i);
    tell(i);
    const node = elements.nodes.get(i);
    if (node && scroll) {
      canvas.scrollTo(node[2] + MARGIN - canvas.clientWidth / 2, node[3] * ROW + MARGIN - canvas.clientHeight / 2);
    }
  }

  function name(i) {
    const node = elements.nodes.get(i);
    return `%${i} ${node ? node[1] : program.values[i][OPERATION]}`;
  }

  function jump(words, go) {
    const button = make("button", { type: "button" }, words);
    button.addEventListener("click", go);
    return button;
  }

  function tell(i) {
    const value = program.values[i], list = make("dl");
    const entry = (word, ...content) => {
      if (content.length) list.append(make("dt", {}, word), make("dd", {}, ...content));
    };
    const line = (at) => make("a", { href: `#line-${slug(data.places[at])}` }, data.places[at]);
    entry("operation", make("code", {}, value[OPERATION]));
    entry("type", make("code", {}, value[TYPE]));
    entry("what became of it", ROLES[value[ROLE]] + (value[STORED] ? ", stored as a tensor" : ""));
    entry("line", ...[OWN, INNER].filter((f) => data.places[value[f]]).flatMap((f) => [line(value[f]), " "]));
    entry("kernels", ...value[KERNELS].flatMap((k) => {
      const [key, label] = data.kernels[k];
      return [make("a", { href: `#kernel-${slug(key)}`, class: `kernel k${k % 6}`, "data-kernel": key }, label), " "];
    }));
    entry("reads", ...value[OPERANDS].map((r) => jump(name(r), () => select(r))));
    entry("read by", ...users[i].map((r) => jump(name(r), () => select(r))));
    const source = data.programs.findIndex((one) => one.key === program.source);
    if (source >= 0) {
      entry("made from", ...value[FROM].map((r) => jump(`%${r} as captured`, () => { show(source); select(r); })));
    }
    about.replaceChildren(make("h3", {}, name(i)), list);
  }

  function along(i, step) {
    const node = elements.nodes.get(i);
    const row = program.nodes.filter((one) => one[3] === node[3]).sort((a, b) => a[2] - b[2]);
    const next = row[row.indexOf(node) + step];
    return next === undefined ? -1 : next[0];
  }

  canvas.addEventListener("keydown", (event) => {
    const moves = {
      ArrowUp: () => program.values[chosen][OPERANDS].find((r) => elements.nodes.has(r)),
      ArrowDown: () => users[chosen].find((r) => elements.nodes.has(r)),
      ArrowLeft: () => along(chosen, -1),
      ArrowRight: () => along(chosen, 1),
    };
    if (event.key in moves && program.nodes.length) {
      event.preventDefault();
      const next = elements.nodes.has(chosen) ? moves[event.key]() : program.nodes[0][0];
      if (next !== undefined && next >= 0) select(next);
    } else if (event.key === "Enter" && chosen >= 0) {
      about.querySelector("a.kernel, a")?.click();
    }
  });

  // A line's number marks the values that come from the line.
  document.querySelectorAll("button[data-place]").forEach((button) => button.addEventListener("click", () => {
    const place = data.places.indexOf(button.dataset.place);
    const found = program.nodes.filter(([i]) => [OWN, INNER].some((f) => program.values[i][f] === place));
    for (const [k, box] of elements.boxes) box.classList.toggle("marked", found.some(([i]) => i === k));
    if (found.length) select(found[0][0]);
    document.getElementById("program").scrollIntoView();
  }));

  // A link into a folded part opens it.
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);

  // The same kernel is marked wherever it is named.
  const same = (event, on) => {
    const at = event.target.closest?.("[data-kernel]");
    if (!at) return;
    document.querySelectorAll(`[data-kernel="${CSS.escape(at.dataset.kernel)}"]`)
      .forEach((one) => one.classList.toggle("same", on));
  };
  document.addEventListener("pointerover", (event) => same(event, true));
  document.addEventListener("pointerout", (event) => same(event, false));

  show(0);
  open();
})();
