// Package maintenance groups what keeps a host in good order: backup (an
// encrypted copy of everything the host keeps, and its restoration) and update
// (replacing this program by a signed release, and back).
//
// Modules, app and cli import them; they import files and access/secret. Begin
// with backup.
package maintenance
