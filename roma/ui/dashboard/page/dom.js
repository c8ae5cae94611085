/**
 * The few things that the page does to the document.
 *
 * Data becomes text nodes and attribute values, never markup: an error message may hold anything.
 * What did not change is not written again, so an idle row costs nothing.
 */

const SVG = 'http://www.w3.org/2000/svg';

/** @typedef {Node|string|null|undefined|false} Child */

/**
 * @param {string} tag optionally with classes, as in `td.num.dim`
 * @param {Record<string, string|number|boolean|null|undefined>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split('.');
  return fill(document.createElement(name), classes, attributes, children);
}

/**
 * @param {string} tag
 * @param {Record<string, string|number|boolean|null|undefined>} [attributes]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split('.');
  return fill(document.createElementNS(SVG, name), classes, attributes, children);
}

function fill(node, classes, attributes, children) {
  if (classes.length) node.setAttribute('class', classes.join(' '));
  for (const [key, value] of Object.entries(attributes)) put(node, key, value);
  node.append(...children.filter((child) => child != null && child !== false));
  return node;
}

/** @type {WeakMap<Node, string>} Reading a text back from the document is slower than this. */
const texts = new WeakMap();

/** @param {Node} node @param {string} text */
export function say(node, text) {
  if (texts.get(node) === text) return;
  texts.set(node, text);
  node.textContent = text;
}

/** @type {WeakMap<Element, Record<string, string|null>>} */
const attributes = new WeakMap();

/** @param {Element} node @param {string} key @param {string|number|boolean|null|undefined} value */
export function put(node, key, value) {
  const text = value === true ? '' : value === false || value == null ? null : String(value);
  let known = attributes.get(node);
  if (!known) attributes.set(node, (known = {}));
  if (known[key] === text) return;
  known[key] = text;
  if (text === null) node.removeAttribute(key);
  else node.setAttribute(key, text);
}

/** @param {HTMLElement} node @param {boolean} shown */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Put `nodes` into `parent` in this order, moving only those that are out of place.
 * @param {Element} parent @param {Node[]} nodes
 */
export function arrange(parent, nodes) {
  let place = parent.firstChild;
  for (const node of nodes) {
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
