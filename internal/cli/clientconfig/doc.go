// Package clientconfig changes the configuration files of MCP clients: it adds
// a server to one, removes it, and reads the servers that are there.
//
// The table of clients is in clients.go, one definition for each client, with
// the page of its documentation that says so. Changes are made to the text of a
// file, at positions found by a parser, so that comments, order, indentation,
// line ends and unknown members stay as they were; after each change both texts
// are parsed, and a change that did more than it should is refused. Only cli
// imports this package. Begin with Client and Change.
package clientconfig
