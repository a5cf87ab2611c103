// Package rawconn reads and writes the sockets between nodes without telling Go's scheduler of a system call.
//
// It need not be told, because the sockets never block. The scheduler of a host that was idle, if it is told of a
// system call, wakes the thread that watches these: twice for each call that crosses nodes, before the call is read and
// before its answer is, when the hosts of both ends and their clients need the processors.
package rawconn
