/* What scrolls can be scrolled from the keyboard, too; the theme wraps tables only after the page has loaded. */
const reach = () =>
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => (box.tabIndex = 0));
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
reach();
/* On a phone, columns of sentences get some width instead of one word per line. */
for (const cell of document.querySelectorAll(".md-typeset table:not([class]) td"))
  if (cell.textContent.length > 60) cell.closest("table").rows[0].cells[cell.cellIndex]?.classList.add("prose");
