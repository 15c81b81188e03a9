// Applies the chosen colours before the page is drawn; loaded in the head, not as a module.
try {
  const theme = localStorage.getItem("outrider.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* a browser without storage follows the system */ }
