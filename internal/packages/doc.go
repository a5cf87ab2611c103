// Package packages runs other people's MCP servers: it installs them, keeps
// them running and relays calls to them.
//
// A package is a record of what is started and where it came from, a folder
// with its program, and a folder of its own data. Its server is a child of
// this host, in a sandbox unless the package is trusted, or a server at an
// address. What the server says is not trusted: names, schemas and sizes are
// limited, tools that differ from what was approved are left out, and hints
// about what a tool does are believed only if the record says so. Answers are
// passed on unchanged.
//
// One host at a time runs the packages of a folder. The module packages and
// app import it. Begin with Manager, in packages.go.
package packages
