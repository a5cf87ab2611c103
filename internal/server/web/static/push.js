// The service worker of Web Push: it shows that a call or a task waits, and opens its page. A message has a path of the
// pages and nothing else. The texts that are shown are in the address of this script, because they are in js/texts.js.
const texts = new URL(self.location.href).searchParams;
const titleOf = (/** @type {string} */ path) => texts.get(path.startsWith("/#/review") ? "task" : "title") ?? "";

/** @param {any} data */
const pathOf = (data) => typeof data?.link === "string" && /^\/#\/(approvals|review)/.test(data.link) ? data.link : "/#/approvals";

self.addEventListener("push", (/** @type {any} */ e) => {
  let data = null;
  try { data = e.data?.json(); } catch { /* another's message: the page shows what waits */ }
  const path = pathOf(data);
  e.waitUntil(/** @type {any} */ (self).registration.showNotification(titleOf(path), { tag: path, data: { link: path }, requireInteraction: true }));
});

self.addEventListener("notificationclick", (/** @type {any} */ e) => {
  e.notification.close();
  const to = new URL(pathOf(e.notification.data), self.location.origin).href;
  const clients = /** @type {any} */ (self).clients;
  e.waitUntil((async () => {
    for (const one of await clients.matchAll({ type: "window", includeUncontrolled: true })) {
      if (new URL(one.url).pathname !== "/") continue;
      try { return await (await one.navigate(to) ?? one).focus(); } catch { /* a tab that is not controlled cannot be led */ }
    }
    return clients.openWindow(to);
  })());
});
