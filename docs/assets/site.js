/* What scrolls can be scrolled from the keyboard, too; the theme wraps tables only after the page has loaded. */
const reach = () =>
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => (box.tabIndex = 0));
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
reach();
