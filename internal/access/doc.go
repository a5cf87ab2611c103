// Package access groups the packages that decide who calls and what the caller may do.
//
// They are identity (users, tokens, certificates, OAuth, peer credentials), permit (the decision about
// each call), approvals and confirm (approval by a person), operator (what only administrators may do),
// passkey (what authenticators sign), limit (rates and queues), audit (the ledger), secret, certs,
// and displaytext (untrusted text made safe to show).
//
// The packages of servers, dispatch, modules and app import them; they import files, mcp/rawjson and
// tool, never a module. Begin with identity for "who is the caller" and with permit for "may this call
// run".
package access
