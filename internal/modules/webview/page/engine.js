// The part of the engine that runs in each document, in a world of its own that scripts of the page cannot reach. It
// numbers elements (refs), words the document as lines, and waits until an element can be acted on.
(() => {
  if (globalThis.engine) return;
  const VIEW = 1, ACTION = 2, HEADING = 4, LANDMARK = 8, NOTE = 16, FRAME = 32, MODAL = 64;
  const LONGEST_NAME = 200, MOST_LINES = 20000, MOST_OPTIONS = 15, MOST_MATCHES = 2000;
  const ACTIONABLE = new Set(("button link textbox searchbox combobox listbox option checkbox radio switch slider " +
    "spinbutton menuitem menuitemcheckbox menuitemradio tab treeitem scrollbar").split(" "));
  const KNOWN = new Set([...ACTIONABLE, ...("alert alertdialog application article banner blockquote caption cell code " +
    "columnheader complementary contentinfo definition dialog directory document feed figure form generic grid gridcell " +
    "group heading img list listitem log main marquee math menu menubar meter navigation none note paragraph " +
    "presentation progressbar radiogroup region row rowgroup rowheader search separator status tablist table tabpanel " +
    "term timer toolbar tooltip tree treegrid").split(" ")]);
  const LANDMARKS = new Set(("banner complementary contentinfo form main navigation region search dialog alertdialog " +
    "alert status tablist menu menubar toolbar tabpanel radiogroup group article figure listbox tree").split(" "));
  const FROM_CONTENT = new Set(("button link option checkbox radio switch menuitem menuitemcheckbox menuitemradio tab " +
    "treeitem heading cell gridcell columnheader rowheader tooltip").split(" "));
  const INPUTS = {button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox",
    radio: "radio", range: "slider", number: "spinbutton", search: "searchbox", file: "file", color: "colour",
    date: "date", time: "time", month: "month", week: "week", "datetime-local": "datetime"};
  const TAGS = {BUTTON: "button", SUMMARY: "button", TEXTAREA: "textbox", H1: "heading", H2: "heading", H3: "heading",
    H4: "heading", H5: "heading", H6: "heading", NAV: "navigation", MAIN: "main", ASIDE: "complementary", UL: "list",
    OL: "list", MENU: "list", LI: "listitem", TABLE: "table", TR: "row", TD: "cell", TH: "columnheader", IMG: "img",
    DIALOG: "dialog", ARTICLE: "article", FIELDSET: "group", PROGRESS: "progressbar", METER: "meter", IFRAME: "iframe",
    FRAME: "iframe", HR: "separator", DETAILS: "group", OPTION: "option", OUTPUT: "status", FIGURE: "figure",
    SEARCH: "search", VIDEO: "video", AUDIO: "audio", CANVAS: "canvas"};
  const SKIP = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "LINK", "META", "TITLE", "BASE", "DATALIST",
    "PARAM", "SOURCE", "TRACK", "COLGROUP", "OBJECT", "EMBED"]);
  const NEVER_FOLDED = new Set(["P", "PRE", "SECTION", "H1", "H2", "H3", "H4", "H5", "H6", "DT", "DD", "BR", "BLOCKQUOTE",
    "SPAN", "CODE", "EM", "STRONG", "B", "I", "TH", "TD"]);
  const SVG = "http://www.w3.org/2000/svg";

  let next = 1;
  const refs = new Map();       // number -> {el: WeakRef, role, name}
  const numbers = new WeakMap(); // element -> number
  let fresh = [];               // the refs that this call has made

  const clean = (s) => s.replace(/[\s\u00a0\u200b]+/g, " ").trim();
  const cut = (s, n) => s.length > n ? s.slice(0, n - 1) + "…" : s;
  const quote = (s) => JSON.stringify(s);
  const styleOf = (el) => getComputedStyle(el);

  function childrenOf(el) {
    if (el.shadowRoot) return el.shadowRoot.childNodes;
    if (el.tagName === "SLOT") {
      const given = el.assignedNodes();
      if (given.length) return given;
    }
    return el.childNodes;
  }
  const parentOf = (n) => n.assignedSlot || n.parentElement || (n.getRootNode() instanceof ShadowRoot ? n.getRootNode().host : null);
  function contains(outer, inner) {
    for (let n = inner; n; n = parentOf(n)) if (n === outer) return true;
    return false;
  }

  // All elements of the document and of its shadow trees.
  function* all(root) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
    for (let n = root.nodeType === 1 ? root : walker.nextNode(); n; n = walker.nextNode()) {
      yield n;
      if (n.shadowRoot) yield* all(n.shadowRoot);
    }
  }
  function deepQuery(root, selector, most) {
    const found = [...root.querySelectorAll(selector)].slice(0, most);
    for (const el of all(root)) {
      if (found.length >= most) break;
      if (el.shadowRoot) found.push(...el.shadowRoot.querySelectorAll(selector));
    }
    return found.slice(0, most);
  }

  function roleOf(el) {
    const given = el.getAttribute("role");
    if (given) {
      const r = given.toLowerCase().split(/\s+/).find((r) => KNOWN.has(r));
      if (r) return r === "none" ? "presentation" : r;
    }
    const tag = el.tagName;
    switch (tag) {
      case "A": case "AREA": return el.hasAttribute("href") ? "link" : "";
      case "INPUT": {
        if (el.list) return "combobox";
        return el.type === "hidden" ? "" : INPUTS[el.type] || "textbox";
      }
      case "SELECT": return el.multiple || el.size > 1 ? "listbox" : "combobox";
      case "HEADER": return el.closest("article,aside,main,nav,section") ? "" : "banner";
      case "FOOTER": return el.closest("article,aside,main,nav,section") ? "" : "contentinfo";
      case "SECTION": return el.hasAttribute("aria-label") || el.hasAttribute("aria-labelledby") ? "region" : "";
      case "FORM": return "form";
      case "VIDEO": case "AUDIO": return el.controls ? tag.toLowerCase() : "";
    }
    if (el.isContentEditable && !(el.parentElement && el.parentElement.isContentEditable)) return "textbox";
    return el.namespaceURI === SVG ? (tag === "svg" ? "img" : "") : TAGS[tag] || "";
  }

  function shown(el) {
    return el.checkVisibility ? el.checkVisibility({visibilityProperty: true}) : el.getClientRects().length > 0;
  }

  // The text of an element as its name: with alternatives of images and labels.
  function textOf(el, most) {
    let out = "";
    const walk = (n) => {
      if (out.length > most) return;
      if (n.nodeType === 3) { out += n.data; return; }
      if (n.nodeType !== 1 || SKIP.has(n.tagName)) return;
      if (n.getAttribute("aria-hidden") === "true" || !shown(n)) {
        if (n.tagName === "SLOT" || styleOf(n).display === "contents") for (const c of childrenOf(n)) walk(c);
        return;
      }
      const label = n !== el && n.getAttribute("aria-label");
      if (label) { out += " " + label + " "; return; }
      if (n.tagName === "IMG") { out += " " + (n.alt || "") + " "; return; }
      if (n.tagName === "INPUT") { if (n.type !== "hidden" && n.type !== "password") out += " " + (n.value || "") + " "; return; }
      if (n.tagName === "SELECT") { out += " " + (n.selectedOptions[0] ? n.selectedOptions[0].label : "") + " "; return; }
      if (n.namespaceURI === SVG && n.tagName === "svg") {
        const t = n.querySelector("title");
        if (t) out += " " + t.textContent + " ";
        return;
      }
      const block = !styleOf(n).display.startsWith("inline");
      if (block) out += " ";
      for (const c of childrenOf(n)) walk(c);
      if (block || n.tagName === "BR") out += " ";
    };
    walk(el);
    return clean(out);
  }

  function byIds(el, attribute) {
    const ids = (el.getAttribute(attribute) || "").split(/\s+/).filter(Boolean);
    const root = el.getRootNode();
    return clean(ids.map((id) => root.getElementById && root.getElementById(id)).filter(Boolean)
      .map((x) => x.getAttribute("aria-label") || clean(x.textContent)).join(" "));
  }

  function nameOf(el, role) {
    const named = byIds(el, "aria-labelledby") || clean(el.getAttribute("aria-label") || "");
    if (named) return cut(named, LONGEST_NAME);
    let n = "";
    const tag = el.tagName;
    if (tag === "LABEL") n = textOf(el, LONGEST_NAME);
    else if (el.labels && el.labels.length) n = clean([...el.labels].map((l) => labelText(l, el)).join(" "));
    if (!n && tag === "INPUT") {
      if (role === "button") n = el.value || (el.type === "submit" ? "Submit" : el.type === "reset" ? "Reset" : el.alt || "");
    } else if (!n && tag === "IMG") n = el.alt || "";
    else if (!n && tag === "AREA") n = el.alt || "";
    else if (!n && tag === "TABLE" && el.caption) n = clean(el.caption.textContent);
    else if (!n && tag === "FIELDSET") { const l = el.querySelector("legend"); n = l ? clean(l.textContent) : ""; }
    else if (!n && tag === "FIGURE") { const l = el.querySelector("figcaption"); n = l ? clean(l.textContent) : ""; }
    else if (!n && tag === "DETAILS") { const l = el.querySelector("summary"); n = l ? clean(l.textContent) : ""; }
    else if (!n && tag === "svg") { const l = el.querySelector("title"); n = l ? clean(l.textContent) : ""; }
    if (!n && (FROM_CONTENT.has(role) || tag === "SUMMARY" || role === "clickable")) n = textOf(el, LONGEST_NAME);
    if (!n) n = el.getAttribute("title") || el.getAttribute("placeholder") || el.getAttribute("aria-placeholder") || "";
    return cut(clean(n), LONGEST_NAME);
  }
  // The text of a label without that of the field inside it.
  function labelText(label, field) {
    if (!contains(label, field)) return textOf(label, LONGEST_NAME);
    let out = "";
    const walk = (n) => {
      if (n.nodeType === 3) out += n.data;
      else if (n.nodeType === 1 && n !== field && !SKIP.has(n.tagName) && n.tagName !== "SELECT" && n.tagName !== "TEXTAREA")
        for (const c of childrenOf(n)) walk(c);
    };
    for (const c of label.childNodes) walk(c);
    return clean(out);
  }

  // Whether an element without a role reacts to clicks.
  function clickable(el, parentPointer) {
    if (el.hasAttribute("onclick") || el.getAttribute("tabindex") === "0" && !el.isContentEditable && el.tagName !== "BODY") return true;
    return !parentPointer && el.tagName !== "LABEL" && el.tagName !== "BODY" && el.tagName !== "HTML" && styleOf(el).cursor === "pointer";
  }

  function number(el, role, name) {
    let n = numbers.get(el);
    if (!n) {
      n = next++;
      numbers.set(el, n);
      fresh.push([n, role, name]);
      refs.set(n, {el: new WeakRef(el), role, name});
    } else {
      const known = refs.get(n);
      if (known.role !== role || known.name !== name) {
        known.role = role; known.name = name;
        fresh.push([n, role, name]);
      }
    }
    return n;
  }
  const elementOf = (n) => {
    const known = refs.get(n);
    const el = known && known.el.deref();
    return el && el.isConnected ? el : null;
  };

  function statesOf(el, role) {
    const s = [], a = (n) => el.getAttribute("aria-" + n), tag = el.tagName;
    const field = tag === "LABEL" && el.control ? el.control : el;
    if (role === "textbox" || role === "searchbox" || role === "spinbutton" || role === "slider" || role === "combobox" ||
        ["colour", "date", "time", "month", "week", "datetime"].includes(role)) {
      if (tag === "SELECT") {
        const o = el.selectedOptions[0];
        if (o) s.push("= " + quote(cut(clean(o.label), 80)));
        const labels = [...el.options].slice(0, MOST_OPTIONS).map((o) => cut(clean(o.label), 40));
        s.push("options: " + labels.join(" | ") + (el.options.length > MOST_OPTIONS ? ` | … ${el.options.length - MOST_OPTIONS} more` : ""));
      } else if (tag === "INPUT" && el.type === "password") { s.push("password"); if (el.value) s.push("filled");
      } else {
        const v = "value" in el ? el.value : a("valuetext") || a("valuenow") || (el.isContentEditable ? clean(el.innerText || "") : "");
        if (v) s.push("= " + quote(cut(String(v), 120)));
      }
    }
    if (tag === "SELECT" && role === "listbox") s.push("options: " + [...el.options].slice(0, MOST_OPTIONS).map((o) => (o.selected ? "*" : "") + cut(clean(o.label), 40)).join(" | "));
    if (role === "file" && field.files && field.files.length) s.push("= " + quote([...field.files].map((f) => f.name).join(", ")));
    if (["checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio"].includes(role)) {
      const c = "checked" in field && (field.type === "checkbox" || field.type === "radio") ? field.checked : a("checked");
      if (field.indeterminate || c === "mixed") s.push("mixed");
      else if (c === true || c === "true") s.push("checked");
    }
    if (role === "option" && tag === "OPTION" ? el.selected : a("selected") === "true") s.push("selected");
    if (a("pressed") === "true") s.push("pressed");
    if (tag === "SUMMARY" && el.parentElement && el.parentElement.tagName === "DETAILS") s.push(el.parentElement.open ? "expanded" : "collapsed");
    else if (a("expanded") !== null) s.push(a("expanded") === "true" ? "expanded" : "collapsed");
    if (a("current") && a("current") !== "false") s.push("current");
    if (field.disabled || a("disabled") === "true") s.push("disabled");
    if (field.required || a("required") === "true") s.push("required");
    if (a("invalid") && a("invalid") !== "false") s.push("invalid");
    if (field.readOnly || a("readonly") === "true") s.push("readonly");
    if (role === "progressbar" || role === "meter") { const v = a("valuetext") || a("valuenow") || (el.position >= 0 ? Math.round(el.position * 100) + "%" : el.value); if (v !== undefined && v !== null && v !== "") s.push("= " + v); }
    const active = deepActive();
    if (active === el && active !== document.body) s.push("focused");
    return s;
  }
  function deepActive() {
    let a = document.activeElement;
    while (a && a.shadowRoot && a.shadowRoot.activeElement) a = a.shadowRoot.activeElement;
    return a;
  }
  function address(el) {
    const h = el.getAttribute("href") || "";
    return cut(h, 200);
  }

  // Words a document or one element of it as lines.
  class Wording {
    constructor(o) {
      this.o = o; this.lines = []; this.run = []; this.runFlags = 0; this.runEl = null;
      this.depth = 0; this.marker = ""; this.modal = 0; this.inline = 0; this.folded = 0; this.full = false;
      this.md = o.mode === "markdown"; this.plain = o.mode === "text";
    }
    viewFlag(el) {
      const r = el.getBoundingClientRect();
      return r.bottom > 0 && r.top < innerHeight && r.right > 0 && r.left < innerWidth && r.width + r.height > 0 ? VIEW : 0;
    }
    flush() {
      if (!this.run.length) return;
      const text = clean(this.run.join(""));
      this.run = [];
      if (text) this.push(this.runFlags, this.marker + text, this.runEl);
      if (text) this.marker = "";
      this.runFlags = 0; this.runEl = null;
    }
    push(flags, text, el) {
      if (this.lines.length >= MOST_LINES) { this.full = true; return; }
      this.lines.push([flags | (el ? this.viewFlag(el) : 0) | (this.modal ? MODAL : 0), this.depth, text]);
    }
    add(text, flags, el) {
      this.run.push(text);
      this.runFlags |= flags;
      if (!this.runEl || flags & ACTION) this.runEl = el;
    }
    break() { if (this.inline) this.run.push(" "); else this.flush(); }
    line(flags, text, el) { if (this.inline) this.add(" " + text + " ", flags, el); else { this.flush(); this.push(flags, this.marker + text, el); this.marker = ""; } }

    children(el, ctx) { this.siblings([...childrenOf(el)], el, ctx); }
    siblings(nodes, el, ctx) {
      const limit = this.o.limit;
      let stop = -1, rest = 0;
      if (limit && nodes.length > limit + 5) {
        const els = nodes.filter((n) => n.nodeType === 1 && !SKIP.has(n.tagName));
        if (els.length > limit + 5 && repeated(els)) { stop = els[limit - 1]; rest = els.length - limit; }
      }
      for (const n of nodes) {
        if (this.full) return;
        this.node(n, ctx);
        if (stop === n) {
          this.break();
          this.folded += rest;
          this.note(el, `… ${rest} more like these`, ctx);
          break;
        }
      }
    }
    note(el, text) {
      const role = roleOf(el) || "group";
      const n = number(el, role, nameOf(el, role));
      this.line(NOTE, this.plain || this.md ? text : `${text} [e${n}: webview_query page=2]`, el);
    }

    node(n, ctx) {
      if (n.nodeType === 3) {
        if (n.data && !ctx.quiet) this.text(n, ctx);
        return;
      }
      if (n.nodeType !== 1 || SKIP.has(n.tagName)) return;
      this.element(n, ctx);
    }
    text(n, ctx) {
      if (ctx.pre && !this.inline) {
        for (const l of n.data.replace(/\n$/, "").split("\n")) { this.flush(); if (l.trim()) this.push(0, l, n.parentElement); }
        return;
      }
      this.add(n.data, 0, n.parentElement);
    }

    element(el, ctx) {
      if (el.getAttribute("aria-hidden") === "true" && !this.plain) return;
      const tag = el.tagName;
      if (!el.checkVisibility || !el.checkVisibility({visibilityProperty: true})) {
        const style = styleOf(el);
        if (style.display === "contents" || style.display !== "none" && style.visibility !== "visible") this.children(el, {...ctx, quiet: style.display !== "contents"});
        else if (tag === "INPUT" && el.type === "file") this.action(el, "file", ctx, "hidden");
        return;
      }
      if (tag === "BR") { this.break(); return; }
      const role = roleOf(el);
      if (tag === "LABEL" && el.control) { this.label(el, ctx); return; }
      if (role === "iframe") { this.frame(el); return; }
      if (ACTIONABLE.has(role) || INPUTS[el.type] === role && tag === "INPUT" || role === "file" || role === "video" || role === "audio") { this.action(el, role, ctx, ""); return; }
      if (role === "heading") { this.heading(el, ctx); return; }
      if (role === "img" || role === "canvas") { this.image(el, role, ctx); return; }
      if ((role === "table" || role === "grid" || role === "treegrid") && this.table(el, role, ctx)) return;
      if (role === "progressbar" || role === "meter") { this.line(0, `${role} ${quote(nameOf(el, role))} ${statesOf(el, role).join(" ")}`, el); return; }
      if (role === "separator") { this.break(); return; }
      const style = styleOf(el);
      const pointer = style.cursor === "pointer";
      if (!role || role === "generic" || role === "presentation" || role === "listitem" || role === "cell" || role === "gridcell" || role === "row" || role === "group" || role === "article") {
        if (!this.plain && !this.md && clickable(el, ctx.pointer) && this.pressable(el)) {
          this.action(el, role && role !== "presentation" && role !== "generic" && role !== "group" ? role : "clickable", {...ctx, pointer: true}, "");
          return;
        }
      }
      this.block(el, role, style, {...ctx, pointer});
    }
    // A clickable element is one thing to act on if nothing else to act on is inside it.
    pressable(el) {
      const text = el.textContent.length;
      return text < 400 && !el.querySelector("a[href],button,input,select,textarea,[role=button],[role=link],[tabindex='0'],iframe");
    }

    block(el, role, style, ctx) {
      const inline = style.display.startsWith("inline") && !role || style.display === "contents" || el.tagName === "SLOT";
      if (inline) {
        if (this.md && /^(CODE|KBD)$/.test(el.tagName)) { this.add("`" + el.textContent + "`", 0, el); return; }
        if (this.md && /^(B|STRONG)$/.test(el.tagName)) { this.add("**" + clean(el.textContent) + "**", 0, el); return; }
        if (style.display === "inline-block") this.run.push(" ");
        this.children(el, ctx);
        if (style.display === "inline-block") this.run.push(" ");
        return;
      }
      this.break();
      const pre = style.whiteSpace.startsWith("pre") && el.tagName === "PRE";
      let deeper = 0, modal = 0;
      if (LANDMARKS.has(role) && !this.plain && !this.md) {
        const name = role === "form" || role === "group" || role === "article" || role === "status" || role === "alert" ? nameOf(el, "") : nameOf(el, role);
        modal = role === "dialog" && (el.matches(":modal") || el.getAttribute("aria-modal") === "true") || role === "alertdialog" ? 1 : 0;
        this.modal += modal;
        if (name || !["group", "article", "figure", "status"].includes(role)) {
          this.line(LANDMARK, role + (name ? " " + quote(cut(name, 80)) : "") + ":", el);
          deeper = this.inline ? 0 : 1;
        }
      } else if (role === "listitem") { this.marker = "- "; deeper = this.inline ? 0 : 1;
      } else if (role === "row" && !this.inline) {
        this.inline++;
        for (const c of childrenOf(el)) { this.node(c, ctx); if (c.nodeType === 1) this.run.push(" | "); }
        this.inline--;
        this.trimRow(); this.flush();
        return;
      }
      if (pre && this.md) this.line(0, "```", el);
      if (role === "listitem") {
        const marker = this.marker;
        this.depth += 0; this.marker = marker;
        const before = this.lines.length;
        this.children(el, {...ctx, pre});
        this.break();
        for (let i = before + 1; i < this.lines.length; i++) this.lines[i][1]++;
        this.marker = "";
        return;
      }
      this.depth += deeper;
      this.children(el, {...ctx, pre: pre || ctx.pre && !this.inline});
      this.break();
      this.depth -= deeper;
      this.modal -= modal;
      if (pre && this.md) this.line(0, "```", el);
    }
    trimRow() { while (this.run.length && /^[\s|]*$/.test(this.run[this.run.length - 1])) this.run.pop(); }

    heading(el, ctx) {
      this.break();
      const level = Math.min(6, Number(el.getAttribute("aria-level") || el.tagName[1]) || 2);
      const at = this.lines.length;
      if (!this.inline) this.run.push(this.plain ? "" : "#".repeat(level) + " ");
      this.inline++;
      this.children(el, {...ctx, quiet: false});
      this.inline--;
      this.runFlags |= HEADING; this.runEl = this.runEl || el;
      if (!this.inline) {
        if (/^#* *$/.test(this.run.join(""))) this.run = [];
        this.flush();
      }
      return at;
    }
    image(el, role) {
      const name = nameOf(el, "img");
      if (!name || this.plain) return;
      this.add(this.md ? ` ![${cut(name, 80)}] ` : ` (${role} ${quote(cut(name, 80))}) `, 0, el);
    }
    label(el, ctx) {
      const field = el.control;
      if (shown(field) || field.type === "file") { this.children(el, {...ctx, quiet: !this.plain && !this.md && clean(el.textContent).length <= LONGEST_NAME}); return; }
      this.action(el, roleOf(field) || "button", ctx, "");
    }
    frame(el) {
      if (this.plain || this.md) { this.line(FRAME, "", el); return; }
      const r = el.getBoundingClientRect();
      if (r.width < 2 || r.height < 2) return;
      const name = nameOf(el, "iframe");
      const n = number(el, "iframe", name);
      if (this.inline) { this.add(` [e${n} iframe ${quote(name)}] `, 0, el); return; }
      this.line(FRAME, `[e${n} iframe${name ? " " + quote(name) : ""}]`, el);
      this.lines[this.lines.length - 1][3] = n;
    }
    action(el, role, ctx, extra) {
      if (this.plain || this.md) { this.readable(el, role, ctx); return; }
      let name = nameOf(el, role);
      const deep = (role === "link" || role === "button" || role === "treeitem" || role === "tab" || role === "option") &&
        (name.length >= LONGEST_NAME || el.querySelector("a[href],button,input,select,textarea,[role=button],[role=link],table,h1,h2,h3,h4,ul,ol,p + p,iframe"));
      const n = number(el, role, name);
      const states = statesOf(el, role);
      if (extra) states.push(extra);
      if (this.o.urls && role === "link") states.push("-> " + address(el));
      if (deep && !this.inline) {
        this.flush();
        this.push(ACTION, `${this.marker}[e${n} ${role}${states.length ? " " + states.join(" ") : ""}]:`, el);
        this.marker = "";
        this.depth++;
        this.children(el, {...ctx, pointer: true, quiet: false});
        this.flush();
        this.depth--;
        return;
      }
      const field = role !== "link" && role !== "button" && role !== "clickable";
      if (field && !this.inline && role !== "tab" && role !== "option" && !/^menuitem/.test(role)) this.break();
      this.add(` [e${n} ${role}${name ? " " + quote(name) : ""}${states.length ? " " + states.join(" ") : ""}] `, ACTION, el);
    }
    readable(el, role, ctx) {
      if (role === "link" && this.md) {
        const name = nameOf(el, role), to = address(el);
        this.add(name ? `[${name}](${to})` : "", 0, el);
      } else if (el.tagName === "INPUT" || el.tagName === "SELECT" || el.tagName === "TEXTAREA") {
        const v = el.tagName === "SELECT" ? [...el.selectedOptions].map((o) => o.label).join(", ") : el.type === "password" ? "" : el.value;
        if (v && el.type !== "checkbox" && el.type !== "radio") this.add(" " + v + " ", 0, el);
      } else { this.block(el, "", styleOf(el), ctx); }
    }

    table(el, role, ctx) {
      const native = el.tagName === "TABLE";
      const rows = native ? [...el.rows] : deepQuery(el, "[role=row]", 100000);
      if (rows.length < 2) return false;
      const cells = (r) => native ? [...r.cells] : deepQuery(r, "[role=cell],[role=gridcell],[role=columnheader],[role=rowheader],td,th", 200);
      if (native && (el.querySelector("table") || Math.max(...rows.slice(0, 5).map((r) => r.cells.length)) < 2)) return false;
      if (this.inline) return false;
      this.flush();
      const name = nameOf(el, role);
      const n = number(el, role, name);
      const header = cells(rows[0]).every((c) => c.tagName === "TH" || c.getAttribute("role") === "columnheader") ? 1 : 0;
      if (!this.plain && !this.md) this.push(LANDMARK, `[e${n} ${role}${name ? " " + quote(cut(name, 80)) : ""} ${rows.length - header} rows]:`, el);
      this.depth++;
      const limit = this.o.limit ? this.o.limit + header : rows.length;
      const until = rows.length > limit + 5 ? limit : rows.length;
      for (let i = this.o.from && ctx.top === el ? this.o.from : 0; i < until && !this.full; i++) {
        this.row(cells(rows[i]), rows[i], ctx);
        if (this.md && i === 0) this.push(0, "|" + " --- |".repeat(cells(rows[0]).length), rows[0]);
      }
      this.depth--;
      if (until < rows.length) {
        this.folded += rows.length - until;
        this.line(NOTE, `… ${rows.length - until} more rows` + (this.plain || this.md ? "" : ` [e${n}: webview_query page=2]`), el);
      }
      return true;
    }
    row(cells, row, ctx) {
      if (!shown(row)) return;
      this.inline++;
      const parts = [];
      let flags = 0;
      for (const c of cells) {
        if (!shown(c)) continue;
        const keep = [this.run, this.runFlags];
        this.run = []; this.runFlags = 0;
        if (clickable(c, true) && this.pressable(c) && !this.plain && !this.md) this.action(c, "cell", ctx, "");
        else this.children(c, {...ctx, pointer: styleOf(c).cursor === "pointer"});
        parts.push(clean(this.run.join("")));
        flags |= this.runFlags;
        [this.run, this.runFlags] = keep;
      }
      this.inline--;
      this.runEl = null;
      let text = parts.join(" | ");
      if (this.md) text = "| " + text + " |";
      else if (!this.plain && row.hasAttribute("onclick") || row.getAttribute("tabindex") === "0") { text = `[e${number(row, "row", cut(text, 60))} row] ` + text; flags |= ACTION; }
      if (clean(text)) this.push(flags, text, row);
    }
  }

  // Whether elements repeat one structure that can be folded.
  function repeated(els) {
    const sign = (e) => e.tagName + "." + (e.classList[0] || "") + "." + (e.getAttribute("role") || "");
    const count = new Map();
    for (const e of els) count.set(sign(e), (count.get(sign(e)) || 0) + 1);
    let best = "", most = 0;
    for (const [s, n] of count) if (n > most) { best = s; most = n; }
    if (most < els.length * 0.8 || NEVER_FOLDED.has(best.split(".")[0])) return false;
    const sample = els.filter((e) => sign(e) === best).slice(0, 5);
    return sample.every((e) => e.textContent.length < 600 && !e.querySelector("h1,h2,form,table"));
  }

  function begin(start) { next = Math.max(next, start || 1); fresh = []; }

  const engine = globalThis.engine = {
    snapshot(o) {
      begin(o.next);
      const w = new Wording(o);
      let top = document.body || document.documentElement;
      if (o.within) { top = elementOf(o.within); if (!top) return {stale: true}; }
      if (!top) return {lines: [], next, fresh, title: "", url: location.href};
      if (o.within) {
        const role = roleOf(top), ctx = {pointer: true, quiet: false, top};
        if (!(["table", "grid", "treegrid"].includes(role) && w.table(top, role, ctx))) {
          if (role === "iframe") w.frame(top); else w.children(top, ctx);
        }
      } else w.children(top, {pointer: styleOf(top).cursor === "pointer", quiet: false});
      w.flush();
      return {lines: w.lines, next, fresh, folded: w.folded, full: w.full, title: document.title, url: location.href,
        y: Math.round(scrollY), height: document.documentElement.scrollHeight, view: innerHeight};
    },

    // Finds the elements that a target names.
    resolve(t, start) {
      begin(start);
      let found = [];
      if (t.selector) {
        try { found = deepQuery(document, t.selector, MOST_MATCHES); } catch (e) { return {bad: String(e.message || e)}; }
      } else if (t.role || t.name) found = byRole(t.role, t.name, t.exact);
      else if (t.text) found = byText(t.text, t.exact);
      const visible = found.filter((el) => shown(el) || el.tagName === "INPUT" && el.type === "file");
      if (!t.hidden && visible.length) found = visible;
      const described = found.slice(t.nth ? t.nth - 1 : 0, (t.nth || t.most || 10) + (t.nth ? 0 : 0)).map((el) => {
        const role = roleOf(el) || el.tagName.toLowerCase(), name = nameOf(el, role) || cut(textOf(el, 60), 60);
        return [number(el, role, name), role, name, shown(el)];
      });
      return {found: described, count: found.length, next, fresh};
    },
    // Describes elements for webview_query.
    describe(list, o) {
      return list.map((n) => {
        const el = elementOf(n);
        if (!el) return null;
        const r = el.getBoundingClientRect();
        const d = {nodeId: n, ref: "e" + n, tagName: el.tagName, attributes: {}, boundingBox: {x: r.x, y: r.y, width: r.width, height: r.height}};
        for (const a of [...el.attributes].slice(0, 30)) d.attributes[a.name] = /^value$/i.test(a.name) && el.type === "password" ? "" : cut(a.value, 500);
        if (o.text) d.text = cut(textOf(el, o.text), o.text);
        if (o.links) d.links = [...el.querySelectorAll("a[href]")].slice(0, 100).map((a) => ({text: cut(textOf(a, 80), 80), url: a.href}));
        if (el.tagName !== "INPUT" || el.type !== "password") if ("value" in el && typeof el.value === "string") d.value = cut(el.value, 1000);
        return d;
      });
    },
    // The rows of a table, or the children of another element, from one index on.
    items(n, from, most, contains, start) {
      begin(start);
      const el = elementOf(n);
      if (!el) return {stale: true};
      const table = el.tagName === "TABLE" ? el : el.querySelector("table");
      let rows, header = null;
      const grid = deepQuery(el, "[role=row]", 100000);
      if (table) rows = [...table.rows]; else if (grid.length > 1) rows = grid;
      else rows = [...childrenOf(el)].filter((c) => c.nodeType === 1 && shown(c));
      if ((table || grid.length > 1) && rows.length && [...rows[0].children].every((c) => c.tagName === "TH" || c.getAttribute("role") === "columnheader")) header = rows.shift();
      if (contains) { const want = contains.toLowerCase(); rows = rows.filter((r) => r.textContent.toLowerCase().includes(want)); }
      const word = (r) => {
        const w = new Wording({limit: 0});
        if (table || grid.length > 1) w.row([...r.children], r, {pointer: true}); else { w.inline++; w.node(r, {pointer: true}); w.inline--; w.flush(); }
        return w.lines.map((l) => l[2]).join(" ");
      };
      return {header: header ? word(header) : "", rows: rows.slice(from, from + most).map(word), total: rows.length, next, fresh};
    },
    refOf(el, start) {
      begin(start);
      const role = roleOf(el) || el.tagName.toLowerCase();
      return {ref: number(el, role, nameOf(el, role)), next, fresh};
    },
    // Where the content of an iframe begins, in pixels of this frame's viewport.
    offset(el) {
      const r = el.getBoundingClientRect(), s = styleOf(el);
      return {x: r.left + el.clientLeft + parseFloat(s.paddingLeft || 0), y: r.top + el.clientTop + parseFloat(s.paddingTop || 0)};
    },

    // Waits until an element can be acted on, and returns the point to act at.
    async ready(n, o) {
      const end = performance.now() + o.timeout;
      let why = "it is not ready", scrolled = 0;
      for (;;) {
        const el = elementOf(n);
        if (!el) return {stale: true};
        const got = await this.tryReady(el, o, scrolled);
        if (got.ok) return got;
        why = got.why;
        if (got.scrolled) scrolled++;
        if (performance.now() > end) return {why};
        await frame();
      }
    },
    async tryReady(el, o, scrolled) {
      if (!shown(el)) return {why: "it is not visible"};
      if (o.kind !== "hover" && o.kind !== "see" && (el.matches(":disabled") || el.getAttribute("aria-disabled") === "true")) return {why: "it is disabled"};
      let rects = [...el.getClientRects()].filter((r) => r.width > 0 && r.height > 0);
      if (!rects.length) return {why: "it has no size"};
      const inside = (r) => r.left + r.width / 2 >= 0 && r.top + r.height / 2 >= 0 && r.left + r.width / 2 <= innerWidth && r.top + r.height / 2 <= innerHeight;
      if (!inside(rects[0]) || o.scroll && !scrolled) {
        el.scrollIntoView({block: scrolled % 3 === 1 ? "end" : scrolled % 3 === 2 ? "start" : "center", inline: "nearest", behavior: "instant"});
        if (!inside(el.getClientRects()[0] || rects[0])) { if (!el.isConnected || scrolled > 3 && rects[0].width <= innerWidth && rects[0].height <= innerHeight) return {why: "it is outside of the viewport", scrolled: true}; }
        rects = [...el.getClientRects()].filter((r) => r.width > 0 && r.height > 0);
        if (!rects.length) return {why: "it has no size"};
        if (!inside(rects[0]) && rects[0].width <= innerWidth && rects[0].height <= innerHeight) return {why: "it is outside of the viewport", scrolled: true};
      }
      const before = el.getBoundingClientRect();
      await frame();
      if (!el.isConnected) return {why: "it was removed"};
      const after = el.getBoundingClientRect();
      if (before.x !== after.x || before.y !== after.y || before.width !== after.width || before.height !== after.height) return {why: "it moves"};
      if (o.kind === "see") return {ok: true, box: {x: after.x + scrollX, y: after.y + scrollY, width: after.width, height: after.height}};
      let cover = null;
      for (const r of [...el.getClientRects()].slice(0, 4)) {
        for (const [fx, fy] of [[0.5, 0.5], [0.25, 0.5], [0.75, 0.5], [0.5, 0.2], [0.5, 0.8]]) {
          const l = Math.max(r.left, 0), t = Math.max(r.top, 0), rr = Math.min(r.right, innerWidth), b = Math.min(r.bottom, innerHeight);
          if (rr - l < 1 || b - t < 1) continue;
          const x = l + (rr - l) * fx, y = t + (b - t) * fy, hit = deepHit(x, y);
          if (hit && (contains(el, hit) || hit.closest && hit.closest("label") && hit.closest("label").control === el || el.tagName === "LABEL" && el.control === hit || el.tagName === "OPTION" || el.tagName === "AREA")) {
            return {ok: true, x, y, role: roleOf(el), editable: !!editable(el), checked: !!(el.control || el).checked || el.getAttribute("aria-checked") === "true"};
          }
          cover = cover || hit;
        }
      }
      return {why: cover ? "it is covered by " + describeShort(cover) : "no point of it is visible"};
    },
    // Puts the focus into a field; its text is selected with clear, otherwise the caret is at its end.
    focus(n, clear) {
      const el = elementOf(n);
      if (!el) return {stale: true};
      const field = editable(el);
      if (!field) return {why: "it is a " + (roleOf(el) || el.tagName.toLowerCase()) + ", which takes no text"};
      if (field.readOnly) return {why: "it is read-only"};
      field.focus({preventScroll: true});
      if (field.tagName === "INPUT" && /^(date|time|month|week|datetime-local|color|range)$/.test(field.type)) return {setter: true, type: field.type};
      if (field.isContentEditable) {
        const s = getSelection(), r = document.createRange();
        r.selectNodeContents(field);
        if (!clear) r.collapse(false);
        s.removeAllRanges(); s.addRange(r);
      } else if (clear) field.select();
      else { try { field.setSelectionRange(field.value.length, field.value.length); } catch (e) { /* numbers have no caret */ } }
      return {ok: true, password: field.type === "password", empty: field.isContentEditable ? !field.textContent : !field.value,
        origin: location.origin, form: field.form && field.form.action ? field.form.action : ""};
    },
    // Whether the field still has the focus; if the page replaced it, the focus goes to its replacement.
    keep(n, start) {
      begin(start);
      const el = elementOf(n), active = deepActive();
      if (el && (contains(el, active) || editable(el) === active)) return {ref: n, next, fresh};
      const known = refs.get(n);
      let now = el;
      if (!now) {
        const found = byRole(known.role, known.name, true).filter(shown);
        if (found.length !== 1) return {stale: true, next, fresh};
        now = found[0];
      }
      const ref = number(now, known.role, known.name);
      const field = editable(now);
      if (field && field !== active) {
        field.focus({preventScroll: true});
        if (field.isContentEditable) { const s = getSelection(); s.selectAllChildren(field); s.collapseToEnd(); }
        else try { field.setSelectionRange(field.value.length, field.value.length); } catch (e) { /* numbers have no caret */ }
      }
      return {ref, healed: ref !== n, next, fresh};
    },
    // Puts a secret into a password field in one step, because the page, or one in another of its frames, could take
    // the focus between two keys.
    insertSecret(n, origin, text) {
      const el = elementOf(n), field = el && editable(el);
      if (!field || location.origin !== origin) return {stale: true};
      field.focus({preventScroll: true});
      if (field.type !== "password" || deepActive() !== field) return {why: "the page moved the focus to another field"};
      if (!document.execCommand("insertText", false, text)) return {why: "it took no text"};
      return {ok: true};
    },
    setValue(n, value) {
      const el = elementOf(n), field = el && editable(el);
      if (!field) return {stale: true};
      Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, value);
      field.dispatchEvent(new Event("input", {bubbles: true}));
      field.dispatchEvent(new Event("change", {bubbles: true}));
      return field.value === value || field.type === "color" || field.type === "range" ? {ok: true, value: field.value} : {why: `it did not take ${quote(value)}; a ${field.type} is written as ${FORMS[field.type] || "text"}`};
    },
    valueOf(n) {
      const el = elementOf(n), field = el && (editable(el) || el);
      return field && "value" in field ? String(field.value) : field ? field.textContent : "";
    },
    select(n, values) {
      const el = elementOf(n);
      if (!el) return {stale: true};
      if (el.tagName !== "SELECT") return {why: "it is no native list of options: click it, and then the option"};
      const options = [...el.options];
      const chosen = [];
      for (const v of values) {
        const o = options.find((o) => o.value === v) || options.find((o) => clean(o.label) === clean(v)) || options.find((o) => clean(o.label).toLowerCase() === clean(v).toLowerCase());
        if (!o) return {why: `it has no option ${quote(v)}; it has ${options.slice(0, 30).map((o) => clean(o.label)).join(" | ")}`};
        if (o.disabled) return {why: `the option ${quote(v)} is disabled`};
        chosen.push(o);
      }
      el.focus({preventScroll: true});
      if (el.multiple) for (const o of options) o.selected = chosen.includes(o); else if (chosen.length) chosen[0].selected = true;
      el.dispatchEvent(new Event("input", {bubbles: true}));
      el.dispatchEvent(new Event("change", {bubbles: true}));
      return {ok: true, value: chosen.map((o) => clean(o.label)).join(", ")};
    },
    scroll(n, to) {
      const el = n ? elementOf(n) : null;
      if (n && !el) return {stale: true};
      const top = document.scrollingElement || document.documentElement;
      if (to === "top") (el || top).scrollTo({top: 0, behavior: "instant"});
      else if (to === "bottom") (el || top).scrollTo({top: 1e9, behavior: "instant"});
      else if (el) el.scrollIntoView({block: "center", behavior: "instant"});
      return {ok: true, y: Math.round(top.scrollTop), height: top.scrollHeight};
    },
    element(n) { return elementOf(n); },
    put(n) { const el = elementOf(n); if (el) { const f = editable(el) || el; if (deepActive() !== f) f.focus({preventScroll: true}); } },
    replace(n, html) {
      const el = elementOf(n);
      if (!el) return {stale: true};
      el.innerHTML = html;
      return {ok: true};
    },
    frame() { return frame(); },
    // Whether a text, an element or their absence is there.
    has(o) {
      if (o.selector) {
        let found;
        try { found = deepQuery(document, o.selector, MOST_MATCHES); } catch (e) { return {bad: String(e.message || e)}; }
        return {yes: found.some(shown), count: found.length};
      }
      const text = clean(document.body ? document.body.innerText : "");
      if (text.includes(clean(o.text))) return {yes: true};
      for (const el of all(document)) if (el.shadowRoot && clean([...el.shadowRoot.children].map((c) => c.innerText || "").join(" ")).includes(clean(o.text))) return {yes: true};
      return {yes: false};
    },
    // Boxes of all refs in the viewport, to draw their labels on a screenshot.
    boxes(list) {
      return list.map((n) => {
        const el = elementOf(n);
        if (!el || !shown(el)) return null;
        const r = el.getBoundingClientRect();
        return r.bottom > 0 && r.top < innerHeight && r.right > 0 && r.left < innerWidth ? [n, r.x, r.y, r.width, r.height] : null;
      }).filter(Boolean);
    },
    mark(boxes) {
      const layer = document.createElement("div");
      layer.id = "gatehouse-marks";
      layer.style.cssText = "position:fixed;inset:0;z-index:2147483647;pointer-events:none";
      for (const [n, x, y, w, h] of boxes) {
        const b = document.createElement("div");
        b.style.cssText = `position:absolute;left:${x}px;top:${y}px;width:${w}px;height:${h}px;outline:1px solid #d00`;
        const l = document.createElement("div");
        l.textContent = "e" + n;
        l.style.cssText = "position:absolute;left:0;top:0;background:#d00;color:#fff;font:10px/12px monospace;padding:0 2px";
        b.append(l); layer.append(b);
      }
      document.documentElement.append(layer);
    },
    unmark() { const l = document.getElementById("gatehouse-marks"); if (l) l.remove(); },
  };

  const FORMS = {date: "2026-01-31", time: "14:05", month: "2026-01", week: "2026-W05", "datetime-local": "2026-01-31T14:05"};
  const frame = () => new Promise((done) => {
    const late = setTimeout(done, 100);
    requestAnimationFrame(() => { clearTimeout(late); done(); });
  });
  function deepHit(x, y) {
    let hit = document.elementFromPoint(x, y);
    while (hit && hit.shadowRoot) {
      const inner = hit.shadowRoot.elementFromPoint(x, y);
      if (!inner || inner === hit) break;
      hit = inner;
    }
    return hit;
  }
  function describeShort(el) {
    const id = el.id ? "#" + el.id : el.classList.length ? "." + el.classList[0] : "";
    const text = cut(textOf(el, 40), 40);
    return `<${el.tagName.toLowerCase()}${id}>` + (text ? " " + quote(text) : "");
  }
  function editable(el) {
    const is = (e) => e.tagName === "TEXTAREA" || e.isContentEditable || e.tagName === "INPUT" && !/^(button|submit|reset|image|checkbox|radio|file|hidden)$/.test(e.type);
    if (is(el)) return el;
    if (el.tagName === "LABEL" && el.control && is(el.control)) return el.control;
    for (const e of all(el)) if (is(e) && shown(e)) return e;
    return null;
  }
  function byRole(role, name, exact) {
    const found = [], near = [];
    const want = clean(name || ""), lower = want.toLowerCase();
    for (const el of all(document)) {
      let r = roleOf(el);
      if (role && role !== r) {
        if (!(role === "clickable" || role === "textbox" && r === "searchbox" || role === "button" && r === "" || ["checkbox", "radio", "switch"].includes(role) && el.tagName === "LABEL" && el.control && roleOf(el.control) === role)) continue;
        if (r === "" && !(el.tagName === "LABEL") && !clickable(el, false)) continue;
        r = role;
      }
      if (!role && !ACTIONABLE.has(r) && r !== "heading" && r !== "img") continue;
      if (found.length > MOST_MATCHES) break;
      if (!want) { found.push(el); continue; }
      const n = nameOf(el, r);
      if (n === want) found.push(el);
      else if (!exact && n.toLowerCase().includes(lower)) near.push(el);
    }
    return found.length ? found : near;
  }
  function byText(text, exact) {
    const want = clean(text).toLowerCase(), found = [];
    const matches = (el) => { const t = clean(el.innerText || el.value || "").toLowerCase(); return exact ? t === want : t.includes(want); };
    for (const el of all(document.body || document)) {
      if (SKIP.has(el.tagName) || !clean(el.textContent || el.value || "").toLowerCase().includes(want) && !el.shadowRoot) continue;
      if (!shown(el) || !matches(el)) continue;
      if ([...el.children].some((c) => !SKIP.has(c.tagName) && shown(c) && matches(c))) continue;
      found.push(el);
    }
    // What can be acted on is meant rather than the text in it.
    const acted = found.map((el) => el.closest("a[href],button,label,[role=button],[role=link],[role=tab],[role=menuitem],[role=option],summary") || el);
    const unique = [...new Set(acted)];
    const exactOnes = unique.filter((el) => clean(el.innerText || el.value || "").toLowerCase() === want);
    return exactOnes.length ? exactOnes : unique;
  }
})();
