// Light or dark, before the first paint: a module would run after it and the page would flash.
// Without a choice the system's preference holds (`color-scheme: light dark` in page.css).
(() => {
  const KEY = 'roma-theme';
  const CHOICES = ['system', 'light', 'dark'];

  /** @returns {string} what was chosen last; storage may be forbidden */
  function remembered() {
    try {
      const choice = localStorage.getItem(KEY);
      return CHOICES.includes(choice) ? choice : 'system';
    } catch {
      return 'system';
    }
  }

  /** @param {string} choice */
  function apply(choice) {
    if (choice === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
  }

  let choice = remembered();
  apply(choice);
  document.addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    const say = () => {
      button.textContent = `Theme: ${choice}`;
    };
    say();
    button.addEventListener('click', () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      apply(choice);
      say();
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // Forbidden storage: the choice holds until the page is closed.
      }
    });
  });
})();
