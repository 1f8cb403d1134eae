// A button at each block of code that copies it, without prompts and without what a command printed.
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

// Of a session the lines behind its prompts, else everything.
function input(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  const prompts = lines.map((line) => /^(>>> |\.\.\. ?|\$ )/.exec(line));
  if (!prompts.some(Boolean)) return lines.join("\n");
  return lines.flatMap((line, i) => (prompts[i] ? [line.slice(prompts[i][0].length)] : [])).join("\n");
}
