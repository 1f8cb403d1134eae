// A button at each block of code that copies it, without prompts and without what a command printed; and what screen
// readers and keyboards need.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(input(block.innerText));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.parentElement.append(button);
  }
});

// The ID of a rule stays on one line.
document.addEventListener("DOMContentLoaded", () => {
  for (const link of document.querySelectorAll("article a")) {
    if (/^[A-Z][A-Z0-9]*-\d+$/.test(link.textContent)) link.classList.add("rule");
  }
});

// The theme's captions are headings without a level, and its side bars landmarks without names. What scrolls can be
// reached with the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll('.caption[role="heading"]')) caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  const scrolling = () => {
    for (const block of document.querySelectorAll("div.highlight > pre, .table-wrapper, .sidebar-scroll, .toc-scroll")) {
      if (block.scrollWidth > block.clientWidth || block.scrollHeight > block.clientHeight) block.tabIndex = 0;
      else block.removeAttribute("tabindex");
    }
  };
  scrolling();
  addEventListener("resize", scrolling);
});

// The side bar shows the page's own entry, or that of the page which lists it.
document.addEventListener("DOMContentLoaded", () => {
  const bar = document.querySelector(".sidebar-scroll");
  const entry = bar?.querySelector("a.current") ?? bar?.querySelector('.sidebar-tree a[href="index.html"]');
  if (!entry) return;
  const [seen, at] = [bar.getBoundingClientRect(), entry.getBoundingClientRect()];
  if (at.bottom > seen.bottom) bar.scrollBy({ top: at.top - seen.top - seen.height / 3, behavior: "instant" });
});

// Of a session the lines behind its prompts, else everything.
function input(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  const prompts = lines.map((line) => /^(>>> |\.\.\. ?|\$ )/.exec(line));
  if (!prompts.some(Boolean)) return lines.join("\n");
  return lines.flatMap((line, i) => (prompts[i] ? [line.slice(prompts[i][0].length)] : [])).join("\n");
}
