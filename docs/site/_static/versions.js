// Links to the other versions of the manual, which the folder above this version's lists. Without that list, as in a
// build of one version, the page stays as it is.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const root = new URL(document.documentElement.dataset.content_root, document.baseURI);
  const list = document.createElement("script");
  list.src = new URL("../versions.js", root);
  list.onload = () => show(root, VERSIONS);
  document.head.append(list);
});

function show(root, versions) {
  const here = root.pathname.split("/").at(-2);
  if (!versions.includes(here)) return;
  const links = versions.map((version) => {
    const link = document.createElement("a");
    link.textContent = version;
    link.href = new URL(`../${version}/index.html`, root);
    if (version === here) link.setAttribute("aria-current", "true");
    return link;
  });
  const row = document.createElement("p");
  row.className = "versions";
  row.append("Versions:", ...links.flatMap((link) => [" ", link]));
  document.querySelector(".sidebar-brand")?.after(row);
  document.getElementById("other-versions")?.replaceChildren(...row.cloneNode(true).childNodes);
  if (versions[0] === here) return;
  const note = document.createElement("p");
  note.className = "older";
  const newest = links[0].cloneNode(true);
  newest.textContent = `fp4ref ${versions[0]}`;
  note.append(`This page describes fp4ref ${here}. The newest version is `, newest, ".");
  document.querySelector("article")?.prepend(note);
}
