// Set the stored theme before anything is painted.
try {
  const stored = localStorage.getItem("gelato-theme");
  if (stored) document.documentElement.dataset.theme = stored;
} catch (error) {
  // Without storage the theme of the system applies.
}
